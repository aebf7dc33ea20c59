"""Figures of memory: those of `torch.cuda`, which answers for the device in use."""

from __future__ import annotations

from typing import Any

import torch

_NAMES = (
    "memory_allocated",
    "max_memory_allocated",
    "memory_reserved",
    "max_memory_reserved",
    "memory_stats",
    "memory_summary",
    "mem_get_info",
    "reset_peak_memory_stats",
)
__all__ = list(_NAMES)


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(torch.cuda, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
