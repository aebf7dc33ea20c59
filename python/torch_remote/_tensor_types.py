"""`torch.remote.FloatTensor`, `FloatStorage` and the like: what `type()`, `storage_type()` return.

PyTorch makes such classes for the CPU and CUDA only. `tensor.type(cls)` reads the name that the
class was created with, so that name has dots.
"""

from __future__ import annotations

import types
from functools import cache
from typing import Any

import torch
from torch.storage import _dtype_to_storage_type_map, _LegacyStorage

from ._backend import is_ours, name

NAMES = [
    "BFloat16Tensor",
    "BoolTensor",
    "ByteTensor",
    "CharTensor",
    "DoubleTensor",
    "FloatTensor",
    "HalfTensor",
    "IntTensor",
    "LongTensor",
    "ShortTensor",
]
# As torch.cuda has them: all but those of quantized tensors.
STORAGES = {
    kind: dtype for dtype, kind in _dtype_to_storage_type_map().items() if not kind.startswith("Q")
}


class _TensorType(type):
    """The metaclass of these classes: which tensors are instances, and their repr."""

    dtype: torch.dtype
    is_sparse = False
    layout = torch.strided

    def __instancecheck__(cls, instance: object) -> bool:
        return (
            isinstance(instance, torch.Tensor)
            and is_ours(instance)
            and instance.dtype == cls.dtype
            and instance.layout == cls.layout
        )

    def __call__(cls, *args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
        """The old constructor: sizes make an uninitialised tensor, a sequence gives values."""
        place = torch.device(name() if device is None else device)
        if place.type != name():  # PyTorch's own text
            raise RuntimeError(
                f"legacy constructor expects device type: {name()} but device type: {place.type} "
                "was passed"
            )
        if len(args) == 1 and cls.__instancecheck__(args[0]):
            return torch.ops.aten.alias(args[0])
        if all(isinstance(size, int) for size in args) and not kwargs:
            return torch.empty(args or (0,), dtype=cls.dtype, device=place)
        return getattr(torch, cls.__name__)(*args, **kwargs).to(place)

    @property
    def __name__(cls) -> str:  # type: ignore[override]
        return cls.__qualname__

    def __repr__(cls) -> str:
        return f"<class '{cls.__module__}.{cls.__name__}'>"


@cache
def tensor_type(class_name: str) -> type:
    """The class of one of NAMES."""
    module = f"torch.{name()}"
    facts = {
        "__module__": module,
        "__qualname__": class_name,
        "dtype": getattr(torch, class_name).dtype,
    }
    return _TensorType(f"{module}.{class_name}", (), facts)


class _Storage(_LegacyStorage):  # type: ignore[misc]
    @classmethod
    def from_buffer(cls, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"from_buffer: Not available for {name()} storage")


@cache
def storage_type(class_name: str) -> type:
    """The class of one of STORAGES. PyTorch takes the device from the name of its module."""
    dtype = STORAGES[class_name]
    facts = {"__module__": f"torch.{name()}", "dtype": dtype, "_dtype": dtype}
    return types.new_class(class_name, (_Storage,), exec_body=lambda names: names.update(facts))
