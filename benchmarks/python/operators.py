"""The ten operators whose cost per call is measured, as calls without arguments."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

Call = Callable[[], object]


def make_inputs(device: str, rows: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ones, so that writing in place does not make denormals, which are slow."""
    return (
        torch.ones(rows, width, device=device),
        torch.ones(width, width, device=device),
        torch.ones(width, device=device),
    )


def operators(x: Tensor, weight: Tensor, bias: Tensor) -> dict[str, Call]:
    """The rows of `x`, `weight` (a square) and `bias` have the same width."""
    shape = (x.shape[-1],)
    return {
        "add": lambda: torch.add(x, x),
        "mul_": lambda: x.mul_(x),
        "mm": lambda: torch.mm(x, weight),
        "relu": lambda: torch.relu(x),
        "sum": lambda: torch.sum(x),
        "layer_norm": lambda: F.layer_norm(x, shape, bias, bias),
        "softmax": lambda: torch.softmax(x, -1),
        "linear": lambda: F.linear(x, weight, bias),
        "gelu": lambda: F.gelu(x),
        "cat": lambda: torch.cat((x, x)),
    }


def call_times(call: Call, count: int) -> None:
    for _ in range(count):
        call()
