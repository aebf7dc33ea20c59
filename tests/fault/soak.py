"""`make soak`: a million storages, a million signatures, a thousand connects. Nothing may leak.

python tests/fault/soak.py --scale 1        (--scale 0.01 takes seconds)
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "python"))

import torch
from helpers import is_alive, serving, wait_until

import torch_remote

STORAGES = 1_000_000
SIGNATURES = 1_000_000
CONNECTS = 1_000  # each is a new process, which loads libtorch for 0.3 s
FEWEST_CONNECTS = 20
# Bytes, after the first tenth: allocators keep some memory. A table that grows by 32 bytes for
# each of a million steps would exceed it.
MOST_GROWTH = 24 << 20
# Bytes for each: the client keeps the object of a stopped session, since tensors may point to it.
MOST_FOR_A_CONNECT = 3 << 10


def resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def children(pid: int) -> set[int]:
    pids = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {int(child) for child in pids if is_alive(int(child))}


def sessions(listener: int) -> set[int]:
    """Not the spare, which waits for the next client."""
    return {pid for pid in children(listener) if name_of(pid) == "tr-session"}


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


class Growth:
    """Resident memory of some processes after 10 %, 50 % and 100 % of the steps."""

    def __init__(self, what: str, steps: int, pids: dict[str, int]) -> None:
        self._what = what
        self._pids = pids
        self._looks = {max(1, steps // 10): "10 %", max(2, steps // 2): "50 %", steps: "100 %"}
        self._seen: list[dict[str, int]] = []
        self._begin = time.monotonic()

    def look(self, step: int) -> None:
        if step not in self._looks:
            return
        torch_remote.synchronize()
        self._seen.append({name: resident(pid) for name, pid in self._pids.items()})
        sizes = ", ".join(f"{name} {size / 2**20:.1f} MiB" for name, size in self._seen[-1].items())
        seconds = time.monotonic() - self._begin
        print(f"{self._what}, {self._looks[step]}: {sizes}, after {seconds:.0f} s", flush=True)

    def check(self, most: int = MOST_GROWTH) -> None:
        for name in self._pids:
            grown = self._seen[-1][name] - self._seen[0][name]
            assert grown < most, f"{self._what}: the {name} has grown by {grown} bytes"


def make_storages(device: torch.device, count: int, growth: Growth) -> None:
    """One at a time and many at once; made by calls, by small and by bulk uploads."""
    small, large = torch.ones(64), torch.ones(20_000)
    held: list[torch.Tensor] = []
    made = 0
    while made < count:
        for _ in range(min(1000, count - made)):
            made += 1
            if made % 997 == 0:
                held.append(large.to(device))
            elif made % 10 == 0:
                held.append(small.to(device))
            else:
                held.append(torch.full((64,), 1.0, device=device))
            growth.look(made)
        if made % 3000 == 0:
            held.clear()
    held.clear()


def make_signatures(device: torch.device, count: int, growth: Growth) -> None:
    """Layouts of the same few elements: more than either table holds."""
    base = torch.arange(400.0, device=device)
    strides = product(range(1, 101), repeat=3)
    for made, stride in zip(range(1, count + 1), strides, strict=False):
        base.as_strided((2, 2, 2), stride).neg()
        growth.look(made)


def connect_often(url: str, count: int, growth: Growth) -> None:
    for made in range(1, count + 1):
        with torch_remote.connect(url) as machine:
            assert torch.ones(2, device=machine.devices[0]).sum().item() == 2
        growth.look(made)


@contextmanager
def nothing_left(listener: int) -> Iterator[None]:
    """No more descriptors and threads than before, and no session."""

    def census() -> dict[str, int]:
        return {
            "the client's descriptors": descriptors(os.getpid()),
            "the client's threads": threads(os.getpid()),
            "the listener's descriptors": descriptors(listener),
            "the listener's sessions": len(sessions(listener)),
            "the listener's processes": len(children(listener)),
        }

    assert wait_until(lambda: not sessions(listener) and len(children(listener)) == 1)
    before = census()
    yield
    assert wait_until(lambda: all(now <= before[what] for what, now in census().items())), (
        before,
        census(),
    )


def in_a_session(
    url: str, what: str, count: int, work: Callable[[torch.device, int, Growth], None]
) -> None:
    with torch_remote.connect(url) as machine:
        device = machine.devices[0]
        warm_up = torch.ones(2, device=device)
        assert (warm_up + 1).tolist() == [2, 2]
        pids = {"client": os.getpid(), "session": int(machine.status()["pid"])}
        growth = Growth(what, count, pids)
        work(device, count, growth)
        torch_remote.synchronize()
        del warm_up
        growth.check()


def listener_of(url: str) -> int:
    """The process that listens there, which is the command itself."""
    for child in children(os.getpid()):
        if url.encode() in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0"):
            return child
    raise AssertionError(f"nobody listens on {url}")


def soak(scale: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with serving(f"unix://{folder}/s") as url:
            listener = listener_of(url)
            with torch_remote.connect(url) as machine:  # makes what is made only once
                torch.ones(2, device=machine.devices[0]).sum().item()
            with nothing_left(listener):
                in_a_session(url, "storages", int(STORAGES * scale), make_storages)
                in_a_session(url, "signatures", int(SIGNATURES * scale), make_signatures)
                count = max(FEWEST_CONNECTS, int(CONNECTS * scale))
                growth = Growth("connects", count, {"client": os.getpid(), "listener": listener})
                connect_often(url, count, growth)
                growth.check(MOST_GROWTH + count * MOST_FOR_A_CONNECT)
        assert list(Path(folder).iterdir()) == []


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--scale", type=float, default=1.0)
    begin = time.monotonic()
    soak(arguments.parse_args().scale)
    print(f"nothing has grown, nothing is left: {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
