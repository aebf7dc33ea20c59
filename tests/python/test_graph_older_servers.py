"""`torch_remote.Graph` on a server that does not run programs: its calls are made one by one."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from graphing import recorded
from helpers import assert_same
from pretending import PROGRAMS, older_server

import torch_remote


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[torch.device]:
    with (
        older_server(tmp_path_factory.mktemp("older"), PROGRAMS) as url,
        torch_remote.connect(url) as machine,
    ):
        yield machine.devices[0]


def test_a_replay_makes_the_recorded_calls(device: torch.device) -> None:
    x = torch.ones(3, device=device)
    graph, y = recorded(lambda: [x.add_(1), x.mul(2)][1])
    assert x.tolist() == [1, 1, 1]
    with torch_remote.count() as counted:
        for _ in range(10):
            graph.replay()
    assert (counted.calls, counted.syncs) == (20, 0)
    assert (x.tolist(), y.tolist()) == ([11] * 3, [22] * 3)


def test_training_with_random_numbers_and_settings_equals_the_calls(device: torch.device) -> None:
    torch.manual_seed(1)
    batches = [(torch.randn(5, 6), torch.randint(3, (5,))) for _ in range(6)]

    def train(use_graph: bool) -> Any:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(6, 12), torch.nn.BatchNorm1d(12), torch.nn.Dropout(0.3),
            torch.nn.GELU(), torch.nn.Linear(12, 3),
        ).to(device)  # fmt: skip
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, capturable=True)
        x, goal = batches[0][0].to(device), batches[0][1].to(device)
        torch.remote.manual_seed_all(2)

        def step() -> torch.Tensor:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("remote", dtype=torch.bfloat16):
                loss = torch.nn.functional.cross_entropy(model(x).float(), goal)
            loss.backward()
            optimizer.step()
            return loss

        step()
        graph, loss = recorded(step) if use_graph else (None, None)
        losses = []
        for ours, theirs in batches:
            x.copy_(ours)
            goal.copy_(theirs)
            if graph is None:
                loss = step()
            else:
                graph.replay()
            losses.append(loss.detach().clone())
        return [each.cpu() for each in [*losses, *model.parameters(), *model.buffers()]]

    replayed, eager = train(True), train(False)
    assert_same(replayed, eager)
    assert not torch.equal(eager[0], eager[5])


def test_views_aliases_and_lists_are_as_outside(device: torch.device) -> None:
    def body(x: torch.Tensor, blank: torch.Tensor) -> list[torch.Tensor]:
        rows = x.view(2, 3)
        rows[0].add_(1)
        rows.t()[1].mul_(3)
        y = rows.reshape(-1)[::2].clone()
        y[:2] += x[1:3]
        blank.copy_(x)
        own = torch.zeros(2, dtype=x.dtype, device=x.device)  # first written by a call
        own[1:].copy_(y[:1])
        torch._foreach_add_([y, own], 1.0)
        return [x, rows, y, y[1:], blank, own, *torch.std_mean(y), *torch.split(y, 2)]

    there = torch.arange(6.0, device=device)
    graph, results = recorded(body, there, torch.empty(6, device=device))
    here, blank = torch.arange(6.0), torch.empty(6)
    for _ in range(3):
        graph.replay()
        assert_same([each.cpu() for each in results], body(here, blank))


def test_an_output_that_was_read_before_has_the_value_of_the_last_replay(
    device: torch.device,
) -> None:
    x = torch.ones(3, device=device)
    graph, y = recorded(lambda: x * 2)
    assert y.shape == (3,)
    y.fill_(7)  # before the first replay: it has memory already
    alias = y.view(-1)
    for value in (1.0, 5.0):
        x.fill_(value)
        graph.replay()
        assert y.tolist() == alias.tolist() == [2 * value] * 3
    del graph
    gc.collect()
    assert (y + alias).tolist() == [20, 20, 20]


def test_temporaries_are_freed_where_the_last_call_has_used_them(device: torch.device) -> None:
    x = torch.ones(1 << 20, device=device)

    def body() -> torch.Tensor:
        y = x
        for _ in range(20):
            y = y * 2
        return y.sum()

    graph, total = recorded(body)
    graph.replay()
    torch.remote.reset_peak_memory_stats(device)
    before = torch.remote.memory_allocated(device)
    graph.replay()
    assert total.item() == 2.0**40
    assert torch.remote.memory_allocated(device) == before
    assert torch.remote.max_memory_allocated(device) - before < 4 * x.nbytes


def test_settings_of_the_recording_hold_and_others_are_given_back(device: torch.device) -> None:
    ones = torch.ones(3, device=device)
    torch.set_flush_denormal(True)
    try:
        graph, y = recorded(lambda: ones * 1e-39)
    finally:
        torch.set_flush_denormal(False)
    for _ in range(2):
        graph.replay()
        assert y.tolist() == [0, 0, 0]
        assert_same((ones * 1e-39).cpu(), torch.ones(3) * 1e-39)


def test_an_error_names_the_line_that_recorded_the_call(device: torch.device) -> None:
    index, y = torch.zeros(2, dtype=torch.long, device=device), torch.zeros(1, device=device)

    def failing() -> torch.Tensor:
        y.add_(1)
        return torch.ones(4, device=device)[index] * 2  # line of the recording

    line = failing.__code__.co_firstlineno + 2
    graph, result = recorded(failing)
    graph.replay()
    assert result.tolist() == [2, 2]
    index.fill_(9)
    with pytest.raises(torch_remote.RemoteError, match="out of bounds") as raised:
        graph.replay()
        result.tolist()
    assert f"test_graph_older_servers.py:{line}" in str(raised.value)
    with pytest.raises(RuntimeError):
        result.tolist()  # missing
    assert y.tolist() == [2]
    index.fill_(1)
    graph.replay()
    assert (result.tolist(), y.tolist()) == ([2, 2], [3])


def test_two_threads_replay_one_graph_each_replay_in_one_piece(device: torch.device) -> None:
    x = torch.ones(3, device=device, dtype=torch.float64)
    graph, _ = recorded(lambda: x.copy_((x * 2 + 2) / 2))

    def replay() -> None:
        for _ in range(200):
            graph.replay()

    threads = [threading.Thread(target=replay) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.remote.synchronize(device)
    assert x.tolist() == [401, 401, 401]


def test_a_graph_runs_on_another_stream(device: torch.device) -> None:
    x = torch.ones(3, device=device)
    stream = torch.Stream(device)
    graph, y = recorded(lambda: x.add_(1) * 2)
    graph.replay()
    stream.wait_stream(torch.accelerator.current_stream(device))
    with stream:
        graph.replay()
        event = stream.record_event()
    event.synchronize()
    assert (x.tolist(), y.tolist()) == ([3, 3, 3], [6, 6, 6])


def test_thousands_of_calls_are_one_replay(device: torch.device) -> None:
    x = torch.zeros(1, dtype=torch.int64, device=device)
    graph, _ = recorded(lambda: [x.add_(x[:1] * 0 + i) for i in range(3000)])
    for _ in range(3):
        graph.replay()
    assert x.item() == 3 * sum(range(3000))


def test_a_compiled_function_runs_call_by_call(device: torch.device) -> None:
    compiled = torch.compile(lambda x: (x * 2).relu().sum(0))
    x = torch.randn(4, 3)
    for _ in range(2):
        assert_same(compiled(x.to(device)).cpu(), (x * 2).relu().sum(0))
