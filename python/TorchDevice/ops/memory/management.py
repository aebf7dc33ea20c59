"""Limits, and giving memory back. The functions of `torch.cuda` answer for the device in use."""

from __future__ import annotations

from typing import Any

import torch

from ..._memory import memory_budget, parse_bytes

__all__ = ["empty_cache", "memory_budget", "parse_bytes", "set_per_process_memory_fraction"]


def empty_cache() -> None:
    torch.cuda.empty_cache()


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    torch.cuda.set_per_process_memory_fraction(fraction, device)
