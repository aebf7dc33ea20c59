"""Copies between two servers on this machine, directly (`serve --peers`) and through the client.

    python benchmarks/python/direct_copy.py

prints for each size the rates of both ways and the ratio of the times. The two ways take turns, so
that other work on the machine slows both.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from figure import elapsed

import torch_remote

MIB = 1 << 20
SIZES = (MIB, 16 * MIB, 256 * MIB)
ROUNDS = 7


@contextmanager
def serving(token: Path, *options: str) -> Iterator[str]:
    command = [sys.executable, "-m", "torch_remote_cli", "serve", "--listen", "tcp://127.0.0.1:0"]
    server = subprocess.Popen(
        [*command, "--device", "cpu", "--token-file", str(token), *options],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        yield server.stdout.readline().removeprefix("listening on ").strip()
    finally:
        server.terminate()
        server.wait()


def measure(pairs: dict[str, tuple[torch.device, torch.device]], size: int) -> dict[str, float]:
    """The median time of a copy, by the names of the pairs."""
    tensors = {
        name: [torch.ones(size, dtype=torch.uint8, device=device) for device in pair]
        for name, pair in pairs.items()
    }
    times: dict[str, list[float]] = {name: [] for name in pairs}
    for _ in range(ROUNDS + 1):
        for name, (source, destination) in tensors.items():

            def copy(source: torch.Tensor = source, to: torch.Tensor = destination) -> None:
                to.copy_(source)
                torch_remote.synchronize()

            times[name].append(elapsed(copy))
    return {name: statistics.median(taken[1:]) for name, taken in times.items()}


def main() -> None:
    with ExitStack() as stack:
        token = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "token"
        pairs = {}
        for name, options in (("direct", ["--peers"]), ("client", [])):
            urls = [stack.enter_context(serving(token, *options)) for _ in range(2)]
            machines = [
                stack.enter_context(torch_remote.connect(url, token_file=token)) for url in urls
            ]
            pairs[name] = (machines[0].devices[0], machines[1].devices[0])
        print(f"{'MiB':>5} {'direct MB/s':>12} {'client MB/s':>12} {'direct/client':>14}")
        for size in SIZES:
            times = measure(pairs, size)
            rates = [size / times[name] / 1e6 for name in pairs]
            ratio = times["direct"] / times["client"]
            print(f"{size // MIB:>5} {rates[0]:>12.0f} {rates[1]:>12.0f} {ratio:>14.2f}")


if __name__ == "__main__":
    main()
