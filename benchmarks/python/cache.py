"""`serve --cache`: time and bytes of a model's `.to("remote")`, against a server without a cache.

    python benchmarks/python/cache.py [MBIT/S ...]

Each turn moves the model once without a cache, once to an empty cache and once to the cache that
has it, in sessions of their own, on loopback and then on simulated links of these speeds. Prints
medians of the ratios to the time without a cache in the same turn.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from figure import elapsed

import torch_remote

LAYERS, WIDTH = 25, 2048  # 25 weights of 16 MiB: 419 MB
ROUNDS = 5
ROUND_TRIP_MS = 1


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[str]:
    command = [sys.executable, "-m", "torch_remote_cli", "serve", "--listen"]
    server = subprocess.Popen(
        [*command, f"unix://{folder}/socket", "--device", "cpu", *options],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    try:
        yield server.stdout.readline().removeprefix("listening on ").strip()
    finally:
        server.terminate()
        server.wait(timeout=10)


def make_model() -> torch.nn.Module:
    return torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)])


def move(url: str, weights: list[torch.Tensor]) -> tuple[float, int]:
    """Seconds and bytes of one session that moves the weights, with its handshake done before."""
    with torch_remote.connect(url) as machine:
        device = machine.devices[0]
        torch.zeros(1, device=device).item()

        def upload() -> None:
            moved = [weight.to(device) for weight in weights]
            torch_remote.synchronize()
            del moved

        with torch_remote.count() as counted:
            seconds = elapsed(upload)
            return seconds, counted.bytes_sent


def wait_for_entries(cache: Path, count: int) -> None:
    while sum(len(file.name) == 64 for file in cache.glob("*/*")) < count:
        time.sleep(0.05)


def turn(folder: Path, weights: list[torch.Tensor]) -> list[tuple[float, int]]:
    with serving(folder) as url:
        plain = move(url, weights)
    cache = folder / "cache"
    with serving(folder, "--cache", str(cache), "--cache-size", "2GiB") as url:
        first = move(url, weights)
        wait_for_entries(cache, len(weights))
        second = move(url, weights)
    shutil.rmtree(cache)
    return [plain, first, second]


def measure(link: str, rounds: int) -> None:
    if link:
        os.environ["TORCH_REMOTE_NET"] = f"{ROUND_TRIP_MS},{link}"
    weights = [parameter.detach() for parameter in make_model().parameters()]
    with tempfile.TemporaryDirectory() as name:
        turns = [turn(Path(name), weights) for _ in range(rounds)]
    print(f"{f'{link} Mbit/s' if link else 'loopback'}, {rounds} turns")
    for place, what in enumerate(("no cache", "empty cache", "cache has it")):
        seconds = statistics.median(one[place][0] for one in turns)
        ratio = statistics.median(one[place][0] / one[0][0] for one in turns)
        sent = statistics.median(one[place][1] for one in turns)
        print(f"  {what:<14}{seconds:8.2f} s{ratio:8.2f} ×{sent / 1e6:12.3f} MB sent")


if __name__ == "__main__":
    torch.set_num_threads(1)
    measure("", ROUNDS)
    for speed in sys.argv[1:]:
        measure(speed, 2)
