"""`torch_remote.Graph`: recording runs nothing, and replays equal the same calls made eagerly."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import assert_runs, assert_same, serving

import torch_remote

REFUSED = "operation not permitted when stream is capturing"


def recorded(function: Callable[..., Any], *arguments: Any) -> tuple[torch_remote.Graph, Any]:
    graph = torch_remote.Graph()
    with graph:
        result = function(*arguments)
    return graph, result


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


# --- what it refuses, and that the program goes on


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


# --- views, aliases, in-place, lives of tensors


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


# --- whole steps


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, capturable=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, capturable=True, amsgrad=True),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.01, capturable=True),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01, capturable=True),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.01, capturable=True),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.01, capturable=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, capturable=True),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.01, capturable=True),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=0.01, capturable=True),
    "fused adam": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
}


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 12), torch.nn.BatchNorm1d(12), torch.nn.Dropout(0.3), torch.nn.GELU(),
        torch.nn.Linear(12, 3),
    )  # fmt: skip


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_training_step_replayed_equals_the_steps_made_eagerly(name: str) -> None:
    """As PyTorch's documentation writes it: warm up, capture, fill the inputs, replay."""
    torch.manual_seed(1)
    batches = [(torch.randn(5, 6), torch.randint(3, (5,))) for _ in range(8)]

    def train(use_graph: bool) -> Any:
        model = network().to("remote")
        optimizer = OPTIMIZERS[name](model.parameters())
        x, goal = batches[0][0].to("remote"), batches[0][1].to("remote")
        torch.remote.manual_seed(2)
        losses = []

        def step() -> torch.Tensor:
            optimizer.zero_grad(set_to_none=False)
            loss = torch.nn.functional.cross_entropy(model(x), goal)
            loss.backward()
            optimizer.step()
            return loss

        for _ in range(3):
            step()
        if use_graph:
            graph, loss = recorded(step)
        for ours, theirs in batches:
            x.copy_(ours)
            goal.copy_(theirs)
            if use_graph:
                graph.replay()
            else:
                loss = step()
            losses.append(loss.detach().clone())
        return losses, list(model.parameters()), list(model.buffers())

    replayed, eager = train(True), train(False)
    for ours, theirs in zip(replayed, eager, strict=True):
        assert_same([each.cpu() for each in ours], [each.cpu() for each in theirs])
    assert not torch.equal(eager[0][0].cpu(), eager[0][-1].cpu())


def test_gradients_that_a_step_makes_anew_are_those_of_the_capture() -> None:
    model = torch.nn.Linear(3, 1).to("remote")
    x = torch.ones(2, 3, device="remote")

    def step() -> None:
        model.zero_grad(set_to_none=True)
        model(x).sum().backward()

    step()
    graph, _ = recorded(step)
    assert model.weight.grad is not None
    x.fill_(4)
    graph.replay()
    assert model.weight.grad.tolist() == [[8, 8, 8]]
    graph.replay()
    assert model.weight.grad.tolist() == [[8, 8, 8]]


# --- errors inside


def failing(index: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    y.add_(1)
    picked = torch.ones(4, device="remote")[index]  # line of the recording
    return picked * 2


LINE = failing.__code__.co_firstlineno + 2


def test_the_error_of_a_replay_names_the_operator_and_the_line_that_recorded_it() -> None:
    index, y = torch.zeros(2, dtype=torch.long, device="remote"), torch.zeros(1, device="remote")
    graph, result = recorded(failing, index, y)
    graph.replay()
    assert result.tolist() == [2, 2]
    index.fill_(9)
    with pytest.raises(IndexError, match="out of bounds") as raised:
        graph.replay()
        result.tolist()
    text = str(raised.value)
    assert "aten::index" in text and f"test_graphs.py:{LINE}" in text
    assert "in a graph replayed at" in text
    with pytest.raises(RuntimeError):
        result.tolist()  # missing
    assert y.tolist() == [2]  # the step before the failing one was made
    index.fill_(1)
    graph.replay()
    assert (result.tolist(), y.tolist()) == ([2, 2], [3])


def test_in_blocking_mode_the_replay_itself_raises() -> None:
    assert_runs(
        """
        import torch, torch_remote
        index = torch.zeros(2, dtype=torch.long, device="remote")
        graph = torch_remote.Graph()
        with graph:
            torch.ones(4, device="remote")[index]
        graph.replay()
        index.fill_(9)
        try:
            graph.replay()
        except IndexError as error:
            assert "out of bounds" in str(error), error
        else:
            raise AssertionError("nothing raised")
        index.fill_(0)
        graph.replay()
        """,
        TORCH_REMOTE_BLOCKING="1",
    )


def test_a_missing_input_of_a_replay_is_the_first_calls_error() -> None:
    x = torch.ones(4, device="remote")
    graph, y = recorded(lambda: x + 1)
    bad = torch.full((2,), 9, device="remote")
    with pytest.raises(RuntimeError, match=r"aten::index.* out of bounds"):
        x.copy_(x[bad].repeat(2))
        graph.replay()
        y.tolist()
    x.fill_(1)
    graph.replay()
    assert y.tolist() == [2, 2, 2, 2]


# --- streams, threads, devices, many of them


def test_a_graph_recorded_on_one_stream_runs_on_another() -> None:
    x = torch.ones(3, device="remote")
    one, other = torch.Stream("remote"), torch.Stream("remote")
    one.wait_stream(torch.accelerator.current_stream())
    with one:
        graph, y = recorded(lambda: x.add_(1) * 2)
    for stream in (one, other):
        with stream:
            graph.replay()
            event = stream.record_event()
        event.synchronize()
    torch.accelerator.current_stream().wait_stream(other)
    assert (x.tolist(), y.tolist()) == ([3, 3, 3], [6, 6, 6])


def test_two_threads_replay_one_graph() -> None:
    x = torch.zeros(3, device="remote", dtype=torch.int64)
    graph, _ = recorded(lambda: x.add_(1))

    def replay() -> None:
        for _ in range(300):
            graph.replay()

    threads = [threading.Thread(target=replay) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.remote.synchronize()
    assert x.tolist() == [600, 600, 600]


def test_two_threads_record_at_once() -> None:
    graphs: dict[int, tuple[torch_remote.Graph, torch.Tensor]] = {}
    meet = threading.Barrier(2)

    def record(number: int) -> None:
        x = torch.full((2,), float(number), device="remote")
        graph = torch_remote.Graph()
        meet.wait()
        with graph:
            for _ in range(50):
                x.add_(number)
            meet.wait()
        graphs[number] = graph, x

    threads = [threading.Thread(target=record, args=(number,)) for number in (1, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, (graph, x) in graphs.items():
        graph.replay()
        assert x.tolist() == [51 * number] * 2


def test_two_servers_have_graphs_of_their_own_and_one_graph_has_one_server(tmp_path: Path) -> None:
    with ExitStack() as stack:
        devices = []
        for name in ("a", "b"):
            url = stack.enter_context(serving(f"unix://{tmp_path}/{name}"))
            devices.append(stack.enter_context(torch_remote.connect(url)).devices[0])
        tensors = [torch.ones(2, device=device) for device in devices]
        graphs = [recorded(x.mul_, i + 2)[0] for i, x in enumerate(tensors)]
        for graph in graphs * 2:
            graph.replay()
        assert [x.tolist() for x in tensors] == [[4, 4], [9, 9]]
        with pytest.raises(RuntimeError, match="must be on one server"), torch_remote.Graph():
            for x in tensors:
                x.add_(1)
        assert [x.tolist() for x in tensors] == [[4, 4], [9, 9]]


def test_more_graphs_than_a_server_keeps_are_sent_again_when_they_are_replayed() -> None:
    x = torch.zeros(1, device="remote", dtype=torch.int64)
    graphs = [recorded(x.add_, i)[0] for i in range(10_000)]
    for graph in graphs:
        graph.replay()
    assert x.item() == sum(range(10_000))
    for graph in (graphs[0], graphs[-1], graphs[5000]):
        graph.replay()
    assert x.item() == sum(range(10_000)) + 9999 + 5000


def test_a_graph_that_is_too_large_says_so() -> None:
    x = torch.zeros(1, device="remote")
    with pytest.raises(RuntimeError, match=r"a graph has more than \d+ calls"):
        recorded(lambda: [x.add_(1) for _ in range(1 << 20)])
    assert x.item() == 0


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
