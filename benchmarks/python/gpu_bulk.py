"""Large copies to and from a GPU: `remote` on a CUDA server against local pinned copies.

    python benchmarks/python/gpu_bulk.py [FOLDER]

Prints a table, and writes it to FOLDER/gpu_bulk.md. Local CUDA, with pinned memory and with
pageable memory, has a process of its own: once the backend is named, pinned memory is the
backend's. `remote` is measured in turn with a plain socket, which no copy through a socket beats.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from figure import elapsed, interleave

SIZE = 256 << 20
ROUNDS = 9
TIMEOUT_S = 300

Times = dict[str, float]  # milliseconds, the median of all rounds


def medians(actions: dict[str, Callable[[], object]]) -> Times:
    for action in actions.values():
        action()
        action()
    samples = interleave(ROUNDS, *[lambda run=run: elapsed(run) for run in actions.values()])
    return {
        name: statistics.median(times) * 1e3 for name, times in zip(actions, samples, strict=True)
    }


def measure_cuda() -> Times:
    there = torch.ones(SIZE, dtype=torch.uint8, device="cuda")
    pageable = torch.ones(SIZE, dtype=torch.uint8)
    pinned = pageable.pin_memory()

    def waited(copy: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            copy()
            torch.cuda.synchronize()

        return run

    return medians(
        {
            "up, local CUDA, pinned": waited(lambda: there.copy_(pinned, non_blocking=True)),
            "down, local CUDA, pinned": waited(lambda: pinned.copy_(there, non_blocking=True)),
            "up, local CUDA, pageable": waited(lambda: there.copy_(pageable)),
            "down, local CUDA, pageable": waited(lambda: pageable.copy_(there)),
        }
    )


def measure_remote() -> Times:
    from bulk import Copies, PlainCopy

    plain = PlainCopy()
    copies = {f"{name}, remote": run for name, (run, _) in Copies(SIZE).actions().items()}
    times = medians(
        {
            "up, plain socket": lambda: plain.upload(SIZE),
            "down, plain socket": lambda: plain.download(SIZE),
            **copies,
        }
    )
    plain.close()
    return times


SIDES = {"cuda": measure_cuda, "remote": measure_remote}


def measure_in_a_process(side: str) -> Times:
    finished = subprocess.run(
        [sys.executable, str(Path(__file__)), "--side", side],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=TIMEOUT_S,
    )
    return dict(json.loads(finished.stdout.splitlines()[-1]))


def way_of(name: str) -> str:
    return "up" if name.startswith(("up", "copy_ up", ".to(")) else "down"


def table_of(times: Times) -> str:
    """A row for each copy; the shares are of the rates of a plain socket and of a pinned copy."""
    rows = []
    for name, time in sorted(times.items()):
        way = way_of(name)
        shares = [
            times[f"{way}, {other}"] / time for other in ("plain socket", "local CUDA, pinned")
        ]
        rate = SIZE / time / 1e6
        rows.append(f"| {name} | {time:.1f} | {rate:.1f} | {shares[0]:.2f} | {shares[1]:.2f} |")
    head = ["| copy of 256 MiB | ms | GB/s | of the socket | of pinned PCIe |"]
    return "\n".join([*head, "| --- | --- | --- | --- | --- |", *rows]) + "\n"


def main() -> None:
    table = table_of(measure_in_a_process("cuda") | measure_in_a_process("remote"))
    print(table)
    if len(sys.argv) > 1:
        folder = Path(sys.argv[1])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "gpu_bulk.md").write_text(table)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--side"]:
        print(json.dumps(SIDES[sys.argv[2]]()))
    else:
        main()
