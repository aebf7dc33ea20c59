"""Which operators the suite runs, and with which dtype. Import the backend before this module."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch.testing._internal.common_device_type import ANY_DTYPE_ORDER
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo

VARIANTS = ("forward", "backward")


@dataclass(frozen=True)
class Case:
    """One thing that passes or fails: an OpInfo, forward or backward, with one dtype."""

    op: str
    variant: str
    dtype: str

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def any_one(op: OpInfo) -> list[torch.dtype]:
    """What OpDTypes.any_one picks on a CPU; no dtype where none of PyTorch's order is supported."""
    supported = set(op.supported_dtypes("cpu"))
    both = supported & set(op.supported_backward_dtypes("cpu"))
    candidates = both or supported
    return [dtype for dtype in ANY_DTYPE_ORDER if dtype in candidates][:1]


def all_dtypes(op: OpInfo) -> list[torch.dtype]:
    return sorted(op.supported_dtypes("cpu"), key=str)


def has_backward(op: OpInfo, dtype: torch.dtype) -> bool:
    """Whether PyTorch itself promises gradients; where it does not, there is no backward case."""
    return op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")


def cases(every_dtype: bool) -> list[Case]:
    """All cases, in op_db's order. An OpInfo without a dtype gets one with dtype "none"; it is skipped."""
    found = []
    for op in op_db:
        dtypes = all_dtypes(op) if every_dtype else any_one(op)
        if not dtypes:
            found.append(Case(op.full_name, "forward", "none"))
        for dtype in dtypes:
            found.append(Case(op.full_name, "forward", dtype_name(dtype)))
            if has_backward(op, dtype):
                found.append(Case(op.full_name, "backward", dtype_name(dtype)))
    return found


def op_named(full_name: str) -> OpInfo:
    return _OPS[full_name]


_OPS = {op.full_name: op for op in op_db}
