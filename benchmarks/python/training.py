"""Wall time of training: against CPU eager, and with a slow network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch
from figure import Figure, elapsed, interleave, ratio_of_best
from models import repeat, small_gpt_step

import torch_remote

ROUND_TRIP_S = 0.050
STEPS = 100
STEPS_PER_ROUND = 10
ROUNDS = 9
WARM_UP = 10


def small_gpt_against_cpu() -> list[Figure]:
    torch.set_num_threads(1)
    remote, local = small_gpt_step("remote"), small_gpt_step("cpu")

    def run_remote() -> float:
        return elapsed(lambda: (repeat(remote, STEPS_PER_ROUND), torch_remote.synchronize()))

    def run_local() -> float:
        return elapsed(lambda: repeat(local, STEPS_PER_ROUND))

    interleave(2, run_remote, run_local)
    ratio = ratio_of_best(*interleave(ROUNDS, run_remote, run_local))
    return [Figure("wall time, small GPT training step", ratio, 1.5, unit="×")]


def training_over_a_slow_network() -> list[Figure]:
    """The bar is 1.1 × the time without delay plus a round trip, which is subtracted first."""
    near, far = interleave(3, lambda: _seconds_at(0), lambda: _seconds_at(ROUND_TRIP_S))
    ratio = (min(far) - ROUND_TRIP_S) / min(near)
    return [Figure("wall time, 100 steps at 50 ms round trip", ratio, 1.1, unit="×")]


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
    step = small_gpt_step("remote")
    repeat(step, WARM_UP)
    torch_remote.synchronize()
    print(elapsed(lambda: (repeat(step, STEPS), torch_remote.synchronize())))


if __name__ == "__main__":
    _print_seconds()
