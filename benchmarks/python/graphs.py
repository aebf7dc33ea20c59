"""A step as a graph: bytes and client time of a replay, and replays over a slow network."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import torch
from figure import Figure, elapsed, interleave
from models import repeat, small_gpt_step

import torch_remote

CALLS = 400
REPLAYS = 100
ROUNDS = 9
ROUND_TRIP_S = 0.150


def graph_of_many_calls() -> torch_remote.Graph:
    x = torch.ones(8, 8, device="remote")
    graph = torch_remote.Graph()
    with graph:
        for _ in range(CALLS):
            x.mul_(1.0)
    graph.replay()
    torch_remote.synchronize()
    return graph


def messages_of_a_replay() -> list[Figure]:
    graph = graph_of_many_calls()
    with torch_remote.count() as counted:
        repeat(graph.replay, REPLAYS)
        torch_remote.synchronize()
    return [
        Figure(f"messages per replay of {CALLS} calls", counted.calls / REPLAYS, 1, "=="),
        Figure(f"bytes per replay of {CALLS} calls", counted.bytes_sent / REPLAYS, 64),
    ]


def time_of_a_replay() -> list[Figure]:
    """Of the calling thread, on a processor."""
    torch.set_num_threads(1)
    graph = graph_of_many_calls()

    def measure() -> float:
        torch_remote.synchronize()  # so that replays do not wait for a backlog
        return elapsed(lambda: repeat(graph.replay, REPLAYS), time.thread_time) / REPLAYS

    best = min(interleave(ROUNDS, measure)[0]) * 1e6
    return [Figure(f"client time of a replay of {CALLS} calls", best, 20, unit="µs")]


def replays_over_a_slow_network() -> list[Figure]:
    """The bar is 1.05 × the time without delay plus a round trip, which is subtracted first."""
    near, far = interleave(3, lambda: _seconds_at(0), lambda: _seconds_at(ROUND_TRIP_S))
    ratio = (min(far) - ROUND_TRIP_S) / min(near)
    return [Figure("wall time, 100 replays at 150 ms round trip", ratio, 1.05, unit="×")]


def _seconds_at(round_trip_s: float) -> float:
    """In its own process: the client reads the delay when it connects."""
    finished = subprocess.run(
        [sys.executable, str(Path(__file__))],
        env=os.environ | {"TORCH_REMOTE_NET": f"{round_trip_s * 1000:g}"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=300,
    )
    return float(finished.stdout)


def _print_seconds() -> None:
    torch.set_num_threads(1)
    step = small_gpt_step("remote", capturable=True)
    repeat(step, 2)
    graph = torch_remote.Graph()
    with graph:
        step()
    graph.replay()
    torch_remote.synchronize()
    print(elapsed(lambda: (repeat(graph.replay, REPLAYS), torch_remote.synchronize())))


if __name__ == "__main__":
    _print_seconds()
