"""Sparse tensors to test with, and comparing them part by part."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import torch
from helpers import assert_same

PARTS: dict[torch.layout, tuple[str, ...]] = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}
DENSE = torch.tensor([[1.5, 0, -2, 0], [0, 3, 0, 0], [0, 0, 0, 0.25]])
OTHER = torch.tensor([[0.5, 0, 1, 2], [0, 0, 0, 0], [1, 0, 0, 4]])
WEIGHT = torch.linspace(-1, 1, 20).reshape(4, 5)


def apart(value: Any) -> Any:
    """The same with each sparse tensor as its layout, shape, flag and parts."""
    if isinstance(value, torch.Tensor) and value.layout != torch.strided:
        is_coalesced = value.layout == torch.sparse_coo and value.is_coalesced()
        parts = [getattr(value, part)() for part in PARTS[value.layout]]
        return [str(value.layout), tuple(value.shape), is_coalesced, *map(apart, parts)]
    if isinstance(value, torch.Tensor):
        return value.detach()
    if isinstance(value, list | tuple):
        return [apart(item) for item in value]
    return value


def assert_both_same(function: Callable[[str], Any]) -> None:
    """Runs the function for the remote device and for the CPU; compares bit for bit."""
    remote = function("remote")
    assert_same(apart(remote), apart(function("cpu")))


def saved(value: Any) -> io.BytesIO:
    stream = io.BytesIO()
    torch.save(value, stream)
    stream.seek(0)
    return stream


def coo(device: str, *, coalesced: bool = False) -> torch.Tensor:
    """With an index that occurs twice, unless coalesced."""
    indices = torch.tensor([[0, 2, 0, 1, 0], [2, 3, 0, 1, 2]])
    values = torch.tensor([1.0, 0.25, 1.5, 3.0, -3.0])
    made = torch.sparse_coo_tensor(indices, values, (3, 4), device=device)
    return made.coalesce() if coalesced else made
