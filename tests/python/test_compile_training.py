"""Compiled training steps: no graph is broken for us, and failed steps are taken back."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from failures import bad_gather, held_server
from torch._dynamo.utils import counters

import torch_remote

OPTIMIZERS: dict[str, Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]] = {
    "AdamW": lambda some: torch.optim.AdamW(some, lr=0.1, foreach=True),
    "SGD": lambda some: torch.optim.SGD(some, lr=0.1, momentum=0.9, foreach=True),
}
# After so many runs nothing is compiled anew, which may wait for the server.
COMPILED = 4


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    """Nothing is compiled yet, and a warning is an error: those of Dynamo are UserWarnings."""
    torch._dynamo.reset()
    counters.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield


def train(
    device: str, optimizer: str, backend: str | None
) -> tuple[list[list[float]], dict[str, int]]:
    weights = [torch.nn.Parameter(torch.full((3,), i + 1.0, device=device)) for i in range(3)]
    made = OPTIMIZERS[optimizer](weights)
    step = torch.compile(made.step, backend=backend) if backend else made.step
    for _ in range(3):
        for weight in weights:
            weight.grad = torch.full_like(weight, 0.5)
        step()
    return [weight.tolist() for weight in weights], dict(counters["graph_break"])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_step_has_no_graph_break_and_no_warning(backend: str, optimizer: str) -> None:
    weights, breaks = train("remote", optimizer, backend)
    assert breaks == {}
    assert counters["stats"]["unique_graphs"] >= 1
    for mine, others in zip(weights, train("remote", optimizer, None)[0], strict=True):
        assert mine == pytest.approx(others, rel=1e-5)  # compiled, Adam rounds otherwise


def test_a_compiled_step_with_its_counters_on_the_device_is_one_call() -> None:
    weights = [torch.nn.Parameter(torch.full((3, i + 1), 2.0, device="remote")) for i in range(3)]
    for weight in weights:
        weight.grad = torch.full_like(weight, 0.5)
    step = torch.compile(torch.optim.AdamW(weights, capturable=True).step)
    for _ in range(COMPILED):
        step()
    with torch_remote.count() as counted:
        step()
    assert counted.calls == 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_step_after_a_failure_is_taken_back(backend: str) -> None:
    weight = torch.nn.Parameter(torch.ones(2, device="remote"))
    optimizer = torch.optim.Adam([weight], foreach=True)
    step = torch.compile(optimizer.step, backend=backend)
    weight.grad = torch.ones_like(weight)
    for _ in range(COMPILED):
        step()
    before = weight.tolist()
    with held_server():
        failed = bad_gather()
        step()
        step()
    with pytest.raises(torch_remote.RemoteError, match="aten::gather"):
        failed.item()
    assert int(optimizer.state[weight]["step"]) == COMPILED
    assert weight.tolist() == before
    step()
    assert int(optimizer.state[weight]["step"]) == COMPILED + 1


def test_a_compiled_function_that_trains_has_notes_and_no_warning() -> None:
    weight = torch.nn.Parameter(torch.ones(2, device="remote"))
    optimizer = torch.optim.Adam([weight], foreach=True)

    @torch.compile(backend="eager")
    def work(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        (weight * x).sum().backward()
        optimizer.step()
        return x + 1

    for _ in range(COMPILED):
        work(torch.ones(1, device="remote"))  # the size of bad_gather()'s result
    with held_server():
        failed = bad_gather()
        work(failed)
    with pytest.raises(torch_remote.RemoteError, match="aten::gather"):
        failed.item()
    assert weight.grad is None
    assert int(optimizer.state[weight]["step"]) == COMPILED
