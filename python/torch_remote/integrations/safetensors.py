"""Lets safetensors load to our devices: its own list of device names does not have them.

safetensors takes an int for a device of the accelerator, and PyTorch's accelerator is ours.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch

from .. import _progress
from .._backend import existing_index, name
from .._patches import change_module
from .choice import replace


def _as_index(device: Any) -> Any:
    """The index of one of our devices; every other device as it is."""
    if isinstance(device, str | torch.device) and str(device).split(":")[0] == name():
        return existing_index(device)
    return device


def _open_by_index(safe_open: Any) -> Any:
    """A class in place of the class `safe_open`, which cannot be derived from."""

    class Kind(type):
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, safe_open)

    class Opened(metaclass=Kind):
        __wrapped__ = safe_open
        __doc__ = safe_open.__doc__

        def __new__(cls, filename: Any, framework: Any, device: Any = "cpu", **options: Any) -> Any:
            return safe_open(filename, framework, _as_index(device), **options)

    Opened.__name__ = Opened.__qualname__ = safe_open.__name__
    Opened.__module__ = safe_open.__module__
    return Opened


def _show(load_file: Any) -> Any:
    @functools.wraps(load_file)
    def shown(filename: Any, device: Any = "cpu", **options: Any) -> Any:
        if _as_index(device) is device:
            return load_file(filename, device, **options)
        with _progress.showing(is_upload=True, total=Path(filename).stat().st_size):
            return load_file(filename, device, **options)

    return shown


def install() -> None:
    change_module("safetensors", lambda module: replace(module, "safe_open", _open_by_index))
    change_module("safetensors.torch", lambda module: replace(module, "load_file", _show))
