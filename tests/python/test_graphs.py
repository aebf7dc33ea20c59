"""`torch_remote.Graph`: recording runs nothing, and replays equal the same calls made eagerly."""

from __future__ import annotations

import gc
import threading
from functools import partial

import pytest
import torch
from graphing import recorded
from helpers import assert_runs, assert_same

import torch_remote

# --- what a recording does


def test_recording_runs_nothing_and_the_first_replay_adds() -> None:
    x = torch.ones(3, device="remote")
    graph, _ = recorded(x.add_, 1)
    assert x.tolist() == [1, 1, 1]
    graph.replay()
    assert x.tolist() == [2, 2, 2]
    for _ in range(3):
        graph.replay()
    assert x.tolist() == [5, 5, 5]


def test_new_values_go_in_by_a_copy_and_come_out_of_the_same_output() -> None:
    x = torch.zeros(4, device="remote")
    graph, y = recorded(lambda: (x * 2).relu().sum())
    for i in range(-2, 3):
        x.copy_(torch.full((4,), float(i)))
        graph.replay()
        assert y.item() == max(8 * i, 0)


def test_a_recording_sends_nothing_and_a_replay_sends_one_small_message() -> None:
    x = torch.ones(8, 8, device="remote")
    x.sum().item()
    with torch_remote.count() as counted:
        graph, _ = recorded(lambda: [x.mul_(0.5) for _ in range(100)])
    assert (counted.calls, counted.syncs) == (0, 0)
    graph.replay()
    torch.remote.synchronize()
    with torch_remote.count() as counted:
        for _ in range(100):
            graph.replay()
    assert (counted.calls, counted.syncs) == (100, 0)
    assert x[0, 0].item() == 0.5 ** (100 * 101)


def test_calls_of_other_threads_run_and_are_not_recorded() -> None:
    x, y = torch.zeros(2, device="remote"), torch.zeros(2, device="remote")
    graph = torch_remote.Graph()
    seen: list[list[float]] = []

    def other() -> None:
        y.add_(1)
        seen.append(y.tolist())

    with graph:
        x.add_(1)
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert seen == [[1, 1]]
    graph.replay()
    assert (x.tolist(), y.tolist()) == ([1, 1], [1, 1])


def test_backward_on_autograds_worker_is_recorded() -> None:
    weight = torch.ones(3, device="remote", requires_grad=True)
    x = torch.ones(3, device="remote")
    (weight * x).sum().backward()
    assert weight.grad is not None
    weight.grad.zero_()
    graph, _ = recorded(lambda: (weight * x).square().sum().backward())
    assert weight.grad.tolist() == [0, 0, 0]
    x.fill_(3)
    graph.replay()
    assert weight.grad.tolist() == [18, 18, 18]
    graph.replay()  # accumulates, as the calls would
    assert weight.grad.tolist() == [36, 36, 36]


def test_a_recording_moves_no_generator_and_replays_draw_what_calls_would() -> None:
    x = torch.zeros(5, device="remote")
    torch.remote.manual_seed(3)
    before = torch.remote.get_rng_state()
    graph, drawn = recorded(lambda: torch.rand_like(x) + torch.randn(5, device="remote"))
    assert torch.equal(torch.remote.get_rng_state(), before)
    replayed = []
    for _ in range(4):
        graph.replay()
        replayed.append(drawn.cpu())
    torch.remote.manual_seed(3)
    eager = [(torch.rand_like(x) + torch.randn(5, device="remote")).cpu() for _ in range(4)]
    assert_same(replayed, eager)
    assert not torch.equal(eager[0], eager[1])


def test_a_state_that_is_taken_and_put_back_in_a_recording_is_that_of_each_replay() -> None:
    x = torch.zeros(4, device="remote")

    def body() -> list[torch.Tensor]:
        state = torch.remote.get_rng_state()
        drawn = torch.rand_like(x)
        with torch.random.fork_rng(device_type="remote"):
            torch.remote.set_rng_state(state)
            again = torch.rand_like(x)
        return [drawn, again, torch.rand_like(x)]

    torch.remote.manual_seed(3)
    before = torch.remote.get_rng_state()
    graph, drawn = recorded(body)
    assert torch.equal(torch.remote.get_rng_state(), before)
    replayed = []
    for _ in range(3):
        graph.replay()
        replayed.append([each.cpu() for each in drawn])
    torch.remote.manual_seed(3)
    eager = [[each.cpu() for each in body()] for _ in range(3)]
    assert_same(replayed, eager)
    assert torch.equal(eager[1][0], eager[1][1])
    assert not torch.equal(eager[1][0], eager[0][0])


def test_a_generator_of_the_programs_own_is_used_and_kept() -> None:
    generator = torch.Generator("remote").manual_seed(5)
    draw = partial(torch.rand, 4, device="remote", generator=generator)
    graph, drawn = recorded(draw)
    reference = torch.Generator().manual_seed(5)
    for _ in range(3):
        graph.replay()
        assert_same(drawn.cpu(), torch.rand(4, generator=reference))
    del generator, draw
    gc.collect()
    graph.replay()
    assert_same(drawn.cpu(), torch.rand(4, generator=reference))


# --- the door of PyTorch, profiler


@pytest.mark.skipif(not hasattr(torch.accelerator, "Graph"), reason="torch 2.12 has the first")
def test_torch_accelerator_graph_is_the_same() -> None:
    x = torch.ones(3, device="remote")
    graph = torch.accelerator.Graph(pool=(0, 7))
    with graph:
        y = x.add_(1) * 2
    assert graph.pool() == (0, 7)
    assert x.tolist() == [1, 1, 1]
    for _ in range(2):
        graph.replay()
    assert (x.tolist(), y.tolist()) == ([3, 3, 3], [6, 6, 6])
    graph.reset()
    with pytest.raises(RuntimeError, match="preceding successful capture"):
        graph.replay()


def test_a_profile_shows_a_replay_with_its_calls_inside() -> None:
    x = torch.ones(16, 16, device="remote")
    graph, _ = recorded(lambda: (x @ x).relu())
    graph.replay()
    torch.remote.synchronize()
    with torch.profiler.profile() as profile:
        graph.replay()
        torch.remote.synchronize()
    names = {event.key for event in profile.key_averages()}
    assert "torch_remote::replay" in names
    assert {"mm", "relu"} <= names  # of the server


def test_a_fork_and_an_exit_while_a_graph_lives_are_clean() -> None:
    assert_runs(
        """
        import os, torch, torch_remote
        x = torch.ones(3, device="remote")
        graph = torch_remote.Graph()
        with graph:
            x.add_(1)
        graph.replay()
        child = os.fork()
        if child == 0:
            del graph
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        graph.replay()
        assert x.tolist() == [3, 3, 3]
        open_one = torch_remote.Graph()
        open_one.capture_begin()
        x.add_(1)
        """,
        anew=True,
    )
