"""10⁶ calls, no two with the same shape: the memory of both processes stays flat."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import torch
from figure import Figure

import torch_remote

MIB = 1 << 20
CALLS = 1_000_000
QUICK_CALLS = 100_000
FULL_TABLES = 70_000  # signatures after which both tables are full and replace entries
MAX_ELEMENTS = 8192
SYNC_EVERY = 10_000


def growth_with_ever_new_shapes(quick: bool = False) -> list[Figure]:
    """Resident memory at the end divided by that after the first fifth."""
    calls = QUICK_CALLS if quick else CALLS
    base = torch.ones(MAX_ELEMENTS, device="remote")
    shapes = enumerate(itertools.islice(new_shapes(MAX_ELEMENTS), calls), start=1)
    settled_at = max(calls // 5, FULL_TABLES)
    settled = {}
    for number, (elements, shape) in shapes:
        base[:elements].view(shape).add(1.0)
        if number % SYNC_EVERY == 0:
            torch_remote.synchronize()
        if number == settled_at:
            settled = resident_bytes()
    assert number == calls, f"only {number} shapes of at most {MAX_ELEMENTS} elements"
    torch_remote.synchronize()
    final = resident_bytes()
    return [_figure(process, settled[process], final[process]) for process in settled]


def _figure(process: str, before: int, after: int) -> Figure:
    name = f"memory growth of the {process}, ever new shapes"
    return Figure(name, (after - before) / MIB, 0.1 * before / MIB + 16, unit="MiB")


def new_shapes(max_elements: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Every shape of four dimensions with at most this many elements, after their number."""
    for a in range(1, max_elements + 1):
        for b in range(1, max_elements // a + 1):
            for c in range(1, max_elements // (a * b) + 1):
                for d in range(1, max_elements // (a * b * c) + 1):
                    yield a * b * c * d, (a, b, c, d)


def resident_bytes() -> dict[str, int]:
    servers = _descendants(os.getpid())
    assert servers, "the embedded server is not a child of this process"
    return {"client": _resident(os.getpid()), "server": sum(map(_resident, servers))}


def _resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _descendants(pid: int) -> list[int]:
    children = [
        int(child)
        for listing in Path(f"/proc/{pid}/task").glob("*/children")
        for child in listing.read_text().split()
    ]
    return children + [found for child in children for found in _descendants(child)]
