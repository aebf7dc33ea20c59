"""Views, aliases and lives of tensors in a `torch_remote.Graph`, and the settings of its calls."""

from __future__ import annotations

import gc

import torch
from graphing import recorded
from helpers import assert_same


def test_views_and_aliases_share_memory_in_a_replay_as_outside() -> None:
    def body(x: torch.Tensor) -> list[torch.Tensor]:
        rows = x.view(2, 3)
        rows[0].add_(1)
        rows.t()[1].mul_(3)
        flat = rows.reshape(-1)
        y = flat[::2].clone()
        y[:2] += flat[1:3]
        return [x, rows, y, y[1:]]

    there = torch.arange(6.0, device="remote")
    graph, results = recorded(body, there)
    here = torch.arange(6.0)
    for _ in range(3):
        graph.replay()
        assert_same([each.cpu() for each in results], body(here))
    assert results[3].untyped_storage().data_ptr() == results[2].untyped_storage().data_ptr()


def test_an_input_that_was_not_used_before_the_recording_is_one() -> None:
    x = torch.full((3,), 7.0, device="remote")
    y = torch.empty(3, device="remote")  # the server has not heard of it
    graph, _ = recorded(lambda: y.copy_(x + 1))
    graph.replay()
    assert y.tolist() == [8, 8, 8]


def test_inputs_freed_before_a_replay_are_kept_by_the_graph() -> None:
    x, y = torch.ones(3, device="remote"), torch.zeros(3, device="remote")
    graph, _ = recorded(y.add_, x)
    del x
    gc.collect()
    torch.remote.synchronize()
    torch.remote.empty_cache()
    filler = [torch.full((3,), 9.0, device="remote") for _ in range(50)]
    graph.replay()
    assert y.tolist() == [1, 1, 1]
    assert len(filler) == 50


def test_an_output_lives_on_when_the_graph_is_gone() -> None:
    x = torch.ones(3, device="remote")
    graph, y = recorded(lambda: x + 1)
    graph.replay()
    z = y * 2
    del graph
    gc.collect()
    assert (y.tolist(), z.tolist()) == ([2, 2, 2], [4, 4, 4])
    y.add_(1)
    assert y.tolist() == [3, 3, 3]


def test_a_value_kept_from_the_last_replay_is_overwritten_by_the_next_as_on_cuda() -> None:
    x = torch.ones(3, device="remote")
    graph, y = recorded(lambda: x * 2)
    graph.replay()
    alias, copy = y.view(-1), y.clone()
    x.fill_(5)
    graph.replay()
    assert (alias.tolist(), copy.tolist()) == ([10, 10, 10], [2, 2, 2])


def test_a_graph_freed_while_it_runs_has_run() -> None:
    x = torch.zeros(3, device="remote")
    graph, _ = recorded(lambda: [x.add_(1) for _ in range(200)])
    for _ in range(20):
        graph.replay()
    del graph
    gc.collect()
    assert x.tolist() == [4000, 4000, 4000]


def test_temporaries_take_memory_only_while_the_program_runs() -> None:
    size = 1 << 20
    x = torch.ones(size, device="remote")

    def body() -> torch.Tensor:
        y = x
        for _ in range(20):
            y = y * 2
        return y.sum()

    graph, total = recorded(body)
    graph.replay()
    torch.remote.reset_peak_memory_stats()
    before = torch.remote.memory_allocated()
    graph.replay()
    assert total.item() == size * 2.0**20
    assert torch.remote.memory_allocated() == before
    assert torch.remote.max_memory_allocated() - before < 4 * x.nbytes


def test_settings_of_the_recording_hold_in_a_replay_and_others_are_given_back() -> None:
    x = torch.ones(8, 8, device="remote")
    with torch.autocast("remote", dtype=torch.bfloat16):
        graph, y = recorded(lambda: x @ x)
    assert y.dtype == torch.bfloat16
    graph.replay()
    assert y[0, 0].item() == 8
    assert (x @ x).dtype == torch.float32
    torch.use_deterministic_algorithms(True)
    try:
        graph.replay()
        assert torch.are_deterministic_algorithms_enabled()
        assert (x @ x)[0, 0].item() == 8
    finally:
        torch.use_deterministic_algorithms(False)
