"""Loading a checkpoint that the server has on its disk: `torch_remote.load()` against safetensors.

    python benchmarks/python/files.py [MB] [TURNS]

The file is read once before, so that all of it is in the page cache; then each way has its turn.
safetensors maps the file by default, and reads nothing before a tensor is used: that is timed as it
is, with one byte of each page read, and with a copy of every tensor.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from safetensors.torch import load_file, save_file

import torch_remote

MEGABYTE = 1_000_000


def timed(load: Callable[[], object]) -> float:
    begin = time.perf_counter()
    loaded = load()
    end = time.perf_counter()
    del loaded
    return end - begin


def touched(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """One byte of each page is read, as the first use of the tensors does."""
    for value in state.values():
        value.view(-1).view(torch.uint8)[::4096].sum()
    return state


def make_checkpoint(path: Path, megabytes: int) -> None:
    """Layers of four weights, as a transformer has them, and small ones."""
    state, left, layer = {}, megabytes * MEGABYTE, 0
    while left > 0:
        for name, shape in (("q", (2048, 2048)), ("up", (2048, 5632)), ("norm", (2048,))):
            state[f"layers.{layer}.{name}"] = torch.randn(shape, dtype=torch.float32)
        left -= sum(
            value.nbytes for name, value in state.items() if name.startswith(f"layers.{layer}.")
        )
        layer += 1
    save_file(state, path)


def main() -> None:
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    turns = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "model.safetensors"
        make_checkpoint(path, megabytes)
        command = [sys.executable, "-m", "torch_remote_cli", "serve"]
        options = ["--listen", f"unix://{name}/s", "--files", name]
        server = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            server.stdout.readline()
            compare(path, f"unix://{name}/s", turns)
        finally:
            server.terminate()
            server.wait()


def compare(path: Path, url: str, turns: int) -> None:
    device = torch_remote.connect(url).devices[0]
    torch.ones(1, device=device).sum().item()
    path.read_bytes()

    def ours() -> object:
        loaded = torch_remote.load(path.name, device)
        torch_remote.synchronize()
        return loaded

    ways: dict[str, Callable[[], object]] = {
        "load()": ours,
        "safetensors, pread": lambda: load_file(path, backend="pread"),
        "safetensors, mapped": lambda: load_file(path),
        "safetensors, mapped and touched": lambda: touched(load_file(path)),
        "safetensors, mapped and copied": lambda: {
            key: value.clone() for key, value in load_file(path).items()
        },
    }
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(turns):
        for way, load in ways.items():
            times[way].append(timed(load))
    with torch_remote.count() as counted:
        loaded = torch_remote.load(path.name, device)
        begin = time.perf_counter()
        torch_remote.synchronize()
    print(f"{path.stat().st_size / MEGABYTE:.0f} MB in {len(loaded)} tensors, {turns} turns")
    print(f"sent {counted.bytes_sent} bytes, received {counted.bytes_received}")
    print(f"load() itself returned {time.perf_counter() - begin:.3f} s before the bytes were there")
    for way, seconds in times.items():
        ratios = [theirs / own for theirs, own in zip(seconds, times["load()"], strict=True)]
        print(f"{way}: {median(seconds):.3f} s, {median(ratios):.2f} × the time of load()")


if __name__ == "__main__":
    main()
