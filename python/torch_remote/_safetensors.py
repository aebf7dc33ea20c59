"""Lets safetensors load to our devices: its own list of device names does not have them.

safetensors takes an int for a device of the accelerator, and PyTorch's accelerator is ours.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch

from . import _progress
from ._after_import import change_module
from ._backend import existing_index, name
from ._patches import patch


def _as_index(device: Any) -> Any:
    """The index of one of our devices; every other device as it is."""
    if isinstance(device, str | torch.device) and str(device).split(":")[0] == name():
        return existing_index(device)
    return device


def _open_by_index(safe_open: Any) -> Any:
    @functools.wraps(safe_open, updated=())
    def opened(filename: Any, framework: Any, device: Any = "cpu", **options: Any) -> Any:
        return safe_open(filename, framework, _as_index(device), **options)

    return opened


def _show_loading(load_file: Any) -> Any:
    @functools.wraps(load_file)
    def shown(filename: Any, device: Any = "cpu", **options: Any) -> Any:
        if _as_index(device) is device:
            return load_file(filename, device, **options)
        with _progress.showing(is_upload=True, total=Path(filename).stat().st_size):
            return load_file(filename, device, **options)

    return shown


def _change(module: Any) -> None:
    patch(module, "safe_open", _open_by_index(module.safe_open))


def _change_torch_functions(module: Any) -> None:
    if not hasattr(module.safe_open, "__wrapped__"):  # it was imported before our change
        _change(module)
    patch(module, "load_file", _show_loading(module.load_file))


def install() -> None:
    change_module("safetensors", _change)
    change_module("safetensors.torch", _change_torch_functions)
