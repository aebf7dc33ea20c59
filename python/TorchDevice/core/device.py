"""The device in use, and how requests are redirected."""

from __future__ import annotations

from typing import Any

import torch

from .. import _C, _state
from .._device import TorchDevice
from .._state import cpu_override, default_device

__all__ = [
    "DeviceManager",
    "TorchDevice",
    "cpu_override",
    "get_default_device",
    "module_to_replacement",
    "tensor_to_replacement",
]

get_default_device = default_device


class DeviceManager:
    """What is in force, as functions."""

    cpu_override = _state.cpu_override

    @staticmethod
    def get_default_device() -> torch.device:
        return default_device()

    @staticmethod
    def torch_device_replacement(device: Any = None, index: int | None = None) -> torch.device:
        """What `torch.device(device, index)` is for a user; "cpu:-1" toggles the override."""
        asked = device if index is None else f"{device}:{index}"
        used, reason = _C.decide(asked)
        if asked == "cpu:-1" and used is not None:
            _C.set_toggled("on" in reason.split())
        return torch.device("cpu" if asked is None else asked) if used is None else used


def module_to_replacement(module: torch.nn.Module, device: Any) -> torch.nn.Module:
    """`module.to(device)` as a user's call."""
    used, _ = _C.decide(device)
    return module.to(device if used is None else used)


def tensor_to_replacement(tensor: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
    """`tensor.to(...)` as a user's call: where the device is redirected to."""
    if args and _C.decide(args[0])[0] is not None:
        args = (_C.decide(args[0])[0], *args[1:])
    named = options.get("device")
    if named is not None and _C.decide(named)[0] is not None:
        options["device"] = _C.decide(named)[0]
    return tensor.to(*args, **options)
