"""Client time per call, remote against local CPU eager in the same process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from figure import Clock, Figure, elapsed, geometric_mean, interleave, ratio_of_best
from operators import Call, call_times, make_inputs, operators

import torch_remote

ROUNDS = 9
CALLS = 2000
SIDE = 8
WALL_CALLS = 100_000
NEW_SHAPES = 256


def time_per_cached_call() -> list[Figure]:
    """CPU time of the calling thread, and of all threads of the client."""
    torch.set_num_threads(1)
    remote = operators(*make_inputs("remote", SIDE, SIDE))
    local = operators(*make_inputs("cpu", SIDE, SIDE))
    return [
        Figure(
            "client time per cached call, calling thread",
            _ratio(remote, local, time.thread_time),
            1.5,
            unit="×",
        ),
        Figure(
            "client time per cached call, all threads",
            _ratio(remote, local, time.process_time),
            2,
            unit="×",
        ),
    ]


def _ratio(remote: dict[str, Call], local: dict[str, Call], clock: Clock) -> float:
    return geometric_mean(_ratio_of_call(remote[name], local[name], clock) for name in remote)


def _ratio_of_call(remote: Call, local: Call, clock: Clock) -> float:
    call_times(remote, CALLS)
    call_times(local, CALLS)

    def measure_remote() -> float:
        torch_remote.synchronize()  # so that calls do not wait for a backlog
        if clock is time.thread_time:
            return elapsed(lambda: call_times(remote, CALLS), clock)
        # The sender's work counts too, and ends when everything is sent.
        return elapsed(lambda: (call_times(remote, CALLS), torch_remote.synchronize()), clock)

    def measure_local() -> float:
        return elapsed(lambda: call_times(local, CALLS), clock)

    return ratio_of_best(*interleave(ROUNDS, measure_remote, measure_local))


def wall_time_of_cached_calls() -> list[Figure]:
    torch.set_num_threads(1)
    remote = list(operators(*make_inputs("remote", SIDE, SIDE)).values())
    local = list(operators(*make_inputs("cpu", SIDE, SIDE)).values())

    def run(calls: list[Call], wait: Callable[[], object]) -> float:
        started = time.perf_counter()
        for _ in range(WALL_CALLS // len(calls)):
            for call in calls:
                call()
        wait()
        return time.perf_counter() - started

    measures = (lambda: run(remote, torch_remote.synchronize), lambda: run(local, lambda: None))
    interleave(1, *measures)
    ratio = ratio_of_best(*interleave(5, *measures))
    return [Figure("wall time, 10⁵ cached calls and one sync", ratio, 2.5, unit="×")]


def time_per_call_with_a_new_shape() -> list[Figure]:
    """A sequence that grows with every call. Each round has its own width: no shape repeats."""
    torch.set_num_threads(1)
    ratios: dict[str, list[float]] = {}
    for width in range(SIDE, SIDE + ROUNDS):
        for name in operators(*make_inputs("cpu", 1, width)):
            torch_remote.synchronize()
            remote, local = _growing(name, "remote", width), _growing(name, "cpu", width)
            ratios.setdefault(name, []).append(remote / local)
    # The first round includes what is set up once for each operator.
    ratio = geometric_mean(statistics.median(values[1:]) for values in ratios.values())
    return [Figure("client time per call, new shape every call", ratio, 5, unit="×")]


def _growing(name: str, device: str, width: int) -> float:
    whole, weight, bias = make_inputs(device, NEW_SHAPES, width)
    calls = [operators(whole[:rows], weight, bias)[name] for rows in range(1, NEW_SHAPES + 1)]

    def run() -> None:
        for call in calls:
            call()

    return elapsed(run, time.thread_time)
