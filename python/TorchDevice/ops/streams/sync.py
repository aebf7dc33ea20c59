"""Streams: the names of `torch.cuda`, which answer for the device in use."""

from __future__ import annotations

from typing import Any

import torch

_NAMES = ("synchronize",)
__all__ = list(_NAMES)


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(torch.cuda, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
