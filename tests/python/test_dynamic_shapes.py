"""Operators whose result's shape depends on values: one round trip, then like any other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import assert_gradients_match_cpu, assert_matches_cpu, assert_runs

FUNCTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "nonzero": lambda x: x.nonzero(),
    "nonzero_as_tuple": lambda x: list(x.nonzero(as_tuple=True)),
    "argwhere": lambda x: torch.argwhere(x > 1),
    "where": lambda x: list(torch.where(x > 1)),
    "masked_select": lambda x: x.masked_select(x > 1),
    "bool_index": lambda x: x[x > 1],
    "bool_rows": lambda x: x[x.sum(1) > 5],
    "bool_and_slice": lambda x: x[x[:, 0] > 0, 1:],
    "unique": lambda x: x.unique(),
    "unique_all": lambda x: list(x.unique(return_inverse=True, return_counts=True)),
    "unique_dim": lambda x: x.unique(dim=0),
    "unique_consecutive": lambda x: x.flatten().unique_consecutive(),
    "bincount": lambda x: x.flatten().bincount(),
    "bincount_minlength": lambda x: x.flatten().bincount(minlength=30),
    "repeat_interleave": lambda x: torch.repeat_interleave(x[0]),
    "repeat_interleave_each": lambda x: torch.repeat_interleave(x, x[:, 0], dim=0),
    "one_hot": lambda x: torch.nn.functional.one_hot(x),
    "item": lambda x: x[0, 0].item(),
    "tolist": lambda x: x.tolist(),
    "bool": lambda x: [bool((x > 100).any()), bool((x >= 0).all())],
    "int_and_float": lambda x: [int(x[0, 0]), float(x[0, 1])],
    "as_index": lambda x: list(range(10))[x[0, 0]],
    "as_size": lambda x: torch.zeros(x[0, 0].item() + 1, device=x.device),
    "equal": lambda x: [torch.equal(x, x), torch.equal(x, x + 1)],
    "allclose": lambda x: torch.allclose(x.float(), x.float() + 1e-9),
    "in": lambda x: [3 in x, 1000 in x],
    "tensor_split": lambda x: list(x.flatten().tensor_split(torch.tensor([2, 5]))),
    "combinations": lambda x: torch.combinations(x[0]),
    "histc": lambda x: torch.histc(x.float(), 4),
    "after": lambda x: (x[x > 1].float() * 2).sum(),
}


def numbers() -> torch.Tensor:
    return torch.randint(0, 4, (5, 6))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_decide_the_shape_as_on_the_cpu(name: str) -> None:
    assert_matches_cpu(FUNCTIONS[name], numbers())


@pytest.mark.parametrize(
    "name", ["nonzero", "masked_select", "bool_index", "unique", "unique_consecutive", "bincount"]
)
def test_nothing_selected_is_as_on_the_cpu(name: str) -> None:
    assert_matches_cpu(FUNCTIONS[name], torch.zeros(5, 6, dtype=torch.long))
    assert_matches_cpu(FUNCTIONS[name], torch.zeros(0, 6, dtype=torch.long))


def test_gradients_flow_through_a_selection() -> None:
    x = torch.randn(5, 6, requires_grad=True)
    assert_gradients_match_cpu(lambda a: [a[a > 0] * 2, a.masked_select(a < 0)], x)


def test_writing_through_a_mask_is_as_on_the_cpu() -> None:
    def write(x: torch.Tensor) -> torch.Tensor:
        x[x > 2] = 0
        x[x == 1] += 5
        x[(x > 0) & (x < 5)] = x[(x > 0) & (x < 5)] * 2
        return x.masked_scatter(x > 3, x.flip(0))

    assert_matches_cpu(write, numbers())


@pytest.mark.parametrize(
    "name", ["nonzero", "masked_select", "item", "tolist", "unique_consecutive"]
)
def test_one_result_is_one_round_trip(
    name: str, sync_count: Callable[[Callable[[], object]], int]
) -> None:
    x = numbers().to("remote")
    assert sync_count(lambda: FUNCTIONS[name](x)) == 1


def test_a_mask_written_with_a_number_is_no_round_trip(
    sync_count: Callable[[Callable[[], object]], int],
) -> None:
    x = numbers().to("remote")

    def write() -> None:
        x.masked_fill_(x > 2, 0)
        torch.where(x > 1, x, 0)

    assert sync_count(write) == 0


def test_shapes_that_grow_match_the_cpu() -> None:
    def grow(x: torch.Tensor) -> list[torch.Tensor]:
        sequence = x[:1]
        sums = []
        for step in range(1, 12):
            sequence = torch.cat([sequence, sequence[-1:] + step])
            sums.append(sequence.float().softmax(0).sum(1))
        return [sequence, *sums]

    assert_matches_cpu(grow, numbers())


def test_a_cache_written_at_a_growing_offset_matches_the_cpu() -> None:
    def fill(x: torch.Tensor) -> torch.Tensor:
        cache = torch.zeros(2, 8, 3, device=x.device)
        for position in range(8):
            cache[:, position] = x[position] + position
            cache[:, : position + 1].mul_(1.5)
        return cache

    assert_matches_cpu(fill, torch.randn(8, 2, 3))


# Promise 7.
def test_control_c_in_the_wait_leaves_a_session_that_goes_on_and_no_memory() -> None:
    assert_runs(
        """
        import os, signal, threading, torch, torch_remote
        mask = torch.ones(1000, 1000, device="remote")
        parts = torch.arange(4000.0, device="remote")
        torch.remote.synchronize()
        before = torch.remote.memory_allocated()
        pid = torch_remote.machines()[0].status()["pid"]

        def interrupted(call):
            os.kill(pid, signal.SIGSTOP)
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                call()
                raise SystemExit("it did not stop")
            except KeyboardInterrupt:
                pass
            os.kill(pid, signal.SIGCONT)

        for _ in range(3):
            interrupted(lambda: mask.nonzero())
            interrupted(lambda: parts.unique(return_inverse=True, return_counts=True))
            interrupted(lambda: mask[mask > 0])
            interrupted(lambda: parts[0].item())
        assert mask.nonzero().shape == (1_000_000, 2)
        assert parts.unique(return_counts=True)[1].sum().item() == 4000
        torch.remote.synchronize()
        assert torch.remote.memory_allocated() == before, torch.remote.memory_allocated() - before
        """
    )
