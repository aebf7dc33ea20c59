"""`torch.accelerator` while something else than CUDA is in use: indices mean what they mean to
`torch.cuda`, and a rank of torchrun is told of as many devices.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from torch_remote_patches import Patches

from . import _C
from ._callers import truth_for_listed
from ._claim import read_as
from ._target import Target

_REDIRECTED = ("cuda", "mps")
_BY_INDEX = ("set_device_index", "set_device_idx")


def install(changes: Patches, target: Target) -> None:
    if target.kind == "cpu":
        return
    accelerator: Any = torch.accelerator
    modules: list[Any] = [accelerator, getattr(accelerator, "memory", None)]
    for module in modules:
        if hasattr(module, "_get_device_index"):
            changes.patch(module, "_get_device_index", _index(module._get_device_index, target))
    for name in _BY_INDEX:
        changes.wrap(accelerator, name, functools.partial(_setting, target))
    if hasattr(accelerator, "device_index"):
        changes.wrap(accelerator.device_index, "__init__", functools.partial(_block, target))
    count = truth_for_listed(target.device_count, accelerator.device_count)
    changes.patch(accelerator, "device_count", count)
    told = _told(accelerator.current_accelerator)
    current = truth_for_listed(told, accelerator.current_accelerator)
    changes.patch(accelerator, "current_accelerator", current)


def _told(current_accelerator: Any) -> Any:
    """The name that the program's tensors have."""

    @functools.wraps(current_accelerator)
    def current(*args: Any, **kwargs: Any) -> torch.device | None:
        found: torch.device | None = current_accelerator(*args, **kwargs)
        name = None if torch.compiler.is_dynamo_compiling() else read_as()
        # Called from TorchDevice: not redirected.
        return found if found is None or name is None else torch.device(name)

    return current


def _existing(target: Target, device: Any) -> Any:
    """The same device, or 0 for a number that no device has. Text such as "cuda:1" becomes a
    torch.device, which is redirected where it is made."""
    if isinstance(device, torch.device) and device.type in _REDIRECTED:
        device = device.index  # made while nothing was redirected
    is_index = isinstance(device, int) and device > 0
    return target.existing_index(device) if is_index else device


def _index(original: Any, target: Target) -> Any:
    """Takes the CPU for the accelerator's device while the override makes all devices that.

    Code of torch.compile makes the accelerator's device anew, to ask for its stream.
    """

    @functools.wraps(original)
    def index_of(device: Any, optional: bool = False) -> int:
        is_overridden = getattr(device, "type", None) == "cpu" and _C.is_overridden()
        device = None if is_overridden else _existing(target, device)
        return int(original(device, optional or is_overridden))

    return index_of


def _setting(target: Target, set_index: Any) -> Any:
    @functools.wraps(set_index)
    def set_existing(device: Any, /) -> None:
        set_index(_existing(target, device))

    return set_existing


def _block(target: Target, init: Any) -> Any:
    @functools.wraps(init)
    def initialize(self: Any, device: int | None, /) -> None:
        init(self, _existing(target, device))

    return initialize
