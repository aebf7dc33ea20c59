"""Questions about the device in use."""

from __future__ import annotations

from typing import Any

import torch

from .. import _C
from .._target import index_of

__all__ = [
    "get_current_device_type",
    "index_of",
    "is_cpu_override_active",
    "is_cuda_effectively_available",
    "is_device_like",
    "is_mps_effectively_available",
    "same_device",
]


def get_current_device_type() -> str:
    """cpu, cuda, mps, or the name of the remote device."""
    from .._state import default_device

    return str(default_device().type)


def is_cpu_override_active() -> bool:
    return _C.is_overridden()


def is_cuda_effectively_available() -> bool:
    """Whether code for CUDA runs on an accelerator."""
    return _C.accelerator() != "cpu" and not _C.is_overridden()


def is_mps_effectively_available() -> bool:
    """Whether code for MPS runs on an accelerator."""
    return is_cuda_effectively_available()


def same_device(one: Any, other: Any) -> bool:
    """Whether two devices are the same; for CPU and MPS no index and 0 are."""
    first, second = torch.device(one), torch.device(other)
    if first.type != second.type:
        return False
    single = first.type in ("cpu", "mps")
    return (first.index or 0) == (second.index or 0) if single else first == second


def is_device_like(value: Any) -> bool:
    """Whether torch would take the value as a device."""
    return isinstance(value, (str, torch.device, int)) and not isinstance(value, bool)
