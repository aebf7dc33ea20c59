"""`Module.to` as a function."""

from __future__ import annotations

from typing import Any

import torch

from .. import _C

__all__ = ["module_to_replacement"]


def module_to_replacement(module: torch.nn.Module, device: Any) -> torch.nn.Module:
    """`module.to(device)` as a user's call."""
    used, _ = _C.decide(device)
    return module.to(device if used is None else used)
