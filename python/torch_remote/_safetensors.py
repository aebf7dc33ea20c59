"""Lets safetensors load to our devices: its own list of device names does not have them.

safetensors takes an int for a device of the accelerator, and PyTorch's accelerator is ours.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from . import _progress
from ._backend import existing_index, name
from ._patches import change_module, patch


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


def _show(load_file: Any) -> Any:
    @functools.wraps(load_file)
    def shown(filename: Any, device: Any = "cpu", **options: Any) -> Any:
        if _as_index(device) is device:
            return load_file(filename, device, **options)
        with _progress.showing(is_upload=True, total=Path(filename).stat().st_size):
            return load_file(filename, device, **options)

    return shown


def _change(safetensors: Any) -> None:
    """Changes it also in the modules that imported it before us."""
    original = safetensors.safe_open
    changed = _open_by_index(original)
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType) and vars(module).get("safe_open") is original:
            patch(module, "safe_open", changed)


def install() -> None:
    change_module("safetensors", _change)
    change_module(
        "safetensors.torch", lambda module: patch(module, "load_file", _show(module.load_file))
    )
