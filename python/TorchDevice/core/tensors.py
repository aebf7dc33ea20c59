"""`Tensor.to` as a function."""

from __future__ import annotations

from typing import Any

import torch

from .. import _C

__all__ = ["tensor_to_replacement"]


def tensor_to_replacement(tensor: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
    """`tensor.to(...)` as a user's call: where the device is redirected to."""
    if args and _C.decide(args[0])[0] is not None:
        args = (_C.decide(args[0])[0], *args[1:])
    named = options.get("device")
    if named is not None and _C.decide(named)[0] is not None:
        options["device"] = _C.decide(named)[0]
    return tensor.to(*args, **options)
