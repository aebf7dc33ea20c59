"""Graphs on streams, of threads and of servers, and many of them."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from graphing import recorded
from helpers import serving

import torch_remote


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
