"""The class of seed code: `TorchDevice()` is the device in use."""

from __future__ import annotations

from typing import Any

import torch

from . import _C, _state


class _ReadOnly:
    """An attribute of the class that is read when it is asked for."""

    def __init__(self, read: Any) -> None:
        self._read = read

    def __get__(self, instance: Any, owner: Any) -> Any:
        return self._read()


class TorchDevice:
    """`TorchDevice()` is the device that redirected calls use; `TorchDevice("cuda")` asks for one.

    The instance prints as its device, and `.device` is the `torch.device`.
    """

    _default_device = _ReadOnly(_state.default_device)
    _cpu_override = _ReadOnly(_C.is_overridden)
    cpu_override = _state.cpu_override

    def __init__(self, device: Any = None, index: int | None = None) -> None:
        name = f"{device}:{index}" if index is not None else device
        used = None if name is None else _C.decide(name)[0]
        if name is None:
            used = _state.default_device()
        self.device: torch.device = torch.device(name) if used is None else used

    def __str__(self) -> str:
        return str(self.device)

    def __repr__(self) -> str:
        return f"TorchDevice({str(self.device)!r})"

    @staticmethod
    def get_default_device() -> torch.device:
        """The accelerator in use, or the CPU."""
        return _state.default_device()

    apply_patches = ensure_patched = staticmethod(_state.apply_patches)
