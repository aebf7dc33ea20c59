"""Warns once about features that our device lacks and PyTorch would ignore silently."""

from __future__ import annotations

import functools
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from ._backend import name
from ._patches import patch

_LIBRARIES = tuple(f"{Path(file).parent}/" for file in (torch.__file__, __file__))


def _warn(text: str) -> None:
    """Warns at the innermost line outside torch and torch_remote."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, stacklevel=level)


def _warn_of_profiler() -> None:
    """PyTorch prints a C++ trace for every operator where a device cannot be profiled."""
    profile: Any = torch.autograd.profiler.profile
    init = profile.__init__

    @functools.wraps(init)
    def checked(self: Any, enabled: bool = True, **options: Any) -> None:
        if enabled and options.get("use_device") == name():
            _warn(f"{name()} devices cannot be profiled yet, profiling this process only")
            options["use_device"] = None
        init(self, enabled, **options)

    patch(profile, "__init__", checked)


def install() -> None:
    _warn_of_profiler()
