"""Arguments for out=: the right tensor, and several wrong ones. Locally some work, some raise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from both import attempt
from comparing import tensors_of

# On a CPU they write outside an out= of several non-contiguous matrices (torch 2.13).
WRITE_OUTSIDE = frozenset(["tril", "triu", "lu_unpack", "linalg.lu"])


def out_arguments(name: str, compute: Callable[[], Any]) -> Iterator[Any]:
    """For the results of `compute`, one argument after the other; none if the operator fails."""
    results = attempt(compute)
    tensors = tensors_of(results)
    if isinstance(results, Exception):
        return
    plain = isinstance(results, torch.Tensor | tuple | list)
    if not plain or (not isinstance(results, torch.Tensor) and len(tensors) != len(results)):
        yield torch.ones(1)  # its results are not tensors for out=
        return
    if any(tensor.layout != torch.strided for tensor in tensors):
        yield results
        return
    for make in (_same, _other_strides, _longer, _without_elements, _other_dtype):
        if make is _other_strides and name in WRITE_OUTSIDE:
            continue
        made = [make(tensor) for tensor in tensors]
        yield made[0] if isinstance(results, torch.Tensor) else tuple(made)


def _same(result: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(result.size(), result.stride(), dtype=result.dtype).fill_(1)


def _other_strides(result: torch.Tensor) -> torch.Tensor:
    """With gaps between elements, in the reverse order of dimensions."""
    return result.new_ones([*reversed(result.shape), 2])[..., 0].permute(
        [*reversed(range(result.dim()))]
    )


def _longer(result: torch.Tensor) -> torch.Tensor:
    return result.new_ones([*result.shape[:-1], result.shape[-1] + 1 if result.dim() else 2])


def _without_elements(result: torch.Tensor) -> torch.Tensor:
    return result.new_ones(0)


def _other_dtype(result: torch.Tensor) -> torch.Tensor:
    inexact = result.is_floating_point() or result.is_complex()
    return torch.ones(result.shape, dtype=torch.int64 if inexact else torch.float32)
