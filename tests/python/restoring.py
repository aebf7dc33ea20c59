"""A call that fails while an optimizer steps: what the tests of taking back steps share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from failures import bad_gather, held_server

import torch_remote


@pytest.fixture(name="unraisable")
def record_unraisable(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Errors that the restoration has printed instead of raising."""
    seen: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)
    return seen


def fail(work: Callable[[torch.Tensor], object]) -> None:
    """A call fails, and `work` runs before the client hears of it."""
    with held_server():
        failed = bad_gather()
        work(failed)
    with pytest.raises(torch_remote.RemoteError, match="aten::gather"):
        failed.item()


def make_adam() -> tuple[torch.nn.Parameter, torch.optim.Optimizer]:
    weight = torch.nn.Parameter(torch.ones(2, device="remote"))
    return weight, torch.optim.Adam([weight])


def step(weight: torch.nn.Parameter, optimizer: torch.optim.Optimizer, factor: Any) -> None:
    optimizer.zero_grad()
    (weight * factor).sum().backward()
    optimizer.step()


def assert_taken_back(weight: torch.nn.Parameter, optimizer: torch.optim.Optimizer) -> None:
    assert weight.grad is None
    assert [int(state["step"]) for state in optimizer.state.values()] == [1]
    step(weight, optimizer, 1)
    assert weight.grad is not None
    assert weight.grad.tolist() == [1, 1]
    assert [int(state["step"]) for state in optimizer.state.values()] == [2]
