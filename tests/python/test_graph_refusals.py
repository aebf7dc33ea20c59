"""What a recording of `torch_remote.Graph` refuses, and that the program goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphing import REFUSED, recorded

import torch_remote

REFUSALS: dict[str, Callable[[torch.Tensor], Any]] = {
    "item": lambda x: x.sum().item(),
    "cpu": lambda x: x.cpu(),
    "numpy": lambda x: x.tolist(),
    "print": repr,
    "bool": lambda x: bool((x > 0).all()),
    "synchronize": lambda _: torch.remote.synchronize(),
    "accelerator": lambda _: torch.accelerator.synchronize(),
    "nonzero": torch.nonzero,
    "masked": lambda x: x[x > 0],
    "unique": torch.unique,
    "upload": lambda _: torch.ones(1000).to("remote"),
    "seed": lambda _: torch.remote.manual_seed(1),
    "state": lambda _: torch.remote.get_rng_state().tolist(),
    "resize": lambda x: (x * 2).resize_(100).zero_(),
    "out": lambda x: torch.add(x, 1, out=x[:1] * 2),
    "cholesky": lambda x: torch.linalg.cholesky(torch.diag(x)),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_waits_is_refused_as_cuda_does_and_the_program_goes_on(name: str) -> None:
    x = torch.ones(3, device="remote")
    graph = torch_remote.Graph()
    with pytest.raises(RuntimeError, match=REFUSED), graph:
        x.add_(1)
        REFUSALS[name](x)
    assert not torch_remote._C.is_recording()
    assert (x + 1).tolist() == [2, 2, 2]
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()
    with graph:  # it can capture now
        x.add_(1)
    graph.replay()
    assert x.tolist() == [2, 2, 2]


def test_an_error_that_was_caught_spoils_the_capture() -> None:
    x = torch.ones(3, device="remote")
    graph = torch_remote.Graph()
    graph.capture_begin()
    with pytest.raises(torch.AcceleratorError, match=REFUSED):
        x.tolist()
    x.add_(1)
    with pytest.raises(torch.AcceleratorError, match="failed due to a previous error"):
        graph.capture_end()
    assert x.tolist() == [1, 1, 1]


def test_the_blocks_own_error_is_raised_and_nothing_is_captured() -> None:
    x = torch.ones(3, device="remote")
    graph = torch_remote.Graph()
    with pytest.raises(RuntimeError, match="must match the size"), graph:
        x + torch.ones(4, device="remote")
    with pytest.raises(RuntimeError, match="preceding successful capture"):
        graph.replay()
    assert x.sum().item() == 3


def test_begin_end_and_reset_in_the_wrong_order_say_so() -> None:
    graph = torch_remote.Graph()
    with pytest.raises(RuntimeError, match="is not being captured"):
        graph.capture_end()
    with graph:
        with pytest.raises(RuntimeError, match="is being captured"):
            graph.capture_begin()
        with pytest.raises(RuntimeError, match="captures a graph already"), torch_remote.Graph():
            pass
        with pytest.raises(RuntimeError, match="is being captured"):
            graph.reset()
    with pytest.raises(RuntimeError, match="has captured calls already"):
        graph.capture_begin()
    graph.reset()
    x = torch.ones(2, device="remote")
    with graph:
        x.add_(1)
    graph.replay()
    assert x.tolist() == [2, 2]


def test_an_empty_graph_replays_to_nothing() -> None:
    graph = torch_remote.Graph()
    with graph:
        pass
    graph.replay()
    assert "0 calls" in repr(graph)


def test_tensors_of_the_cpu_are_computed_at_once_and_are_no_part_of_a_graph() -> None:
    x = torch.ones(3)
    graph, y = recorded(lambda: x.add_(1) * 2)
    assert (x.tolist(), y.tolist()) == ([2, 2, 2], [4, 4, 4])
    graph.replay()
    assert x.tolist() == [2, 2, 2]


def test_one_element_from_the_host_is_a_constant_of_the_graph() -> None:
    x = torch.ones(3, device="remote")
    rate = torch.tensor(0.5, dtype=torch.float64)
    graph, results = recorded(
        lambda: [
            x * rate.to("remote", non_blocking=True),
            x.mul(rate),
            x + torch.tensor(2 + 1j, device="remote"),
            x.clone().fill_(rate).add(torch.tensor([True]).to("remote")),
        ]
    )
    rate.fill_(9)
    graph.replay()
    assert [each.tolist() for each in results] == [[0.5] * 3, [0.5] * 3, [3 + 1j] * 3, [1.5] * 3]
