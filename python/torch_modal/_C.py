"""The functions that programs call in the C++ extension of torch_modal.

The extension itself is `torch_remote._C`.
"""

from __future__ import annotations

import torch

from torch_remote import _C, _backend


def to_modal(
    self: torch.Tensor,
    device: _backend.DeviceLike = None,
    dtype: torch.dtype | None = None,
    non_blocking: bool = False,
    copy: bool = False,
    memory_format: torch.memory_format = torch.preserve_format,
) -> torch.Tensor:
    """Moves a tensor to a modal device, by default the current one: `Tensor.modal()`."""
    place = torch.device(_backend.name(), _backend.existing_index(device))
    kind = self.dtype if dtype is None else dtype
    return self.to(place, kind, non_blocking, copy, memory_format=memory_format)


def modal(
    tensor: torch.Tensor,
    device: _backend.DeviceLike = None,
    dtype: torch.dtype | None = None,
    non_blocking: bool = False,
    copy: bool = False,
) -> torch.Tensor:
    """`tensor.modal(...)` as a function."""
    return to_modal(tensor, device, dtype, non_blocking, copy)


def _init() -> None:
    """Registers the backend. Importing this package has done so."""


def _get_default_generator(device: int = -1) -> torch.Generator:
    """The default generator of a device; -1 is the current one."""
    return _C.default_generator(_backend.existing_index(None if device == -1 else device))
