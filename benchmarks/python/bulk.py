"""Large copies against a plain socket that moves the same bytes between two processes.

    python benchmarks/python/bulk.py

prints all sizes and directions, with page faults; `make bench` takes the figures of 256 MiB. The
plain socket sends blocks from memory, and receives them into memory, that both ends have used
before: no copy of ours can be quicker unless it does less.
"""

from __future__ import annotations

import resource
import socket
import statistics
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from figure import Figure, elapsed, interleave

import torch_remote

MIB = 1 << 20
SIZES = (16 * MIB, 64 * MIB, 256 * MIB)
BLOCK = MIB  # as a connection's chunks
SOCKET_BUFFER = 4 * MIB  # as a connection's
ROUNDS = 7
BAR = 0.8
COMMAND = struct.Struct("<cQ")


def set_up(end: socket.socket) -> None:
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER)


def send(end: socket.socket, memory: memoryview) -> None:
    for begin in range(0, len(memory), BLOCK):
        end.sendall(memory[begin : begin + BLOCK])


def receive(end: socket.socket, memory: memoryview) -> None:
    done = 0
    while done < len(memory):
        count = end.recv_into(memory[done : done + BLOCK])
        if not count:
            raise EOFError("socket closed in the middle of a copy")
        done += count


class PlainCopy:
    """A process at the other end of a socket pair that receives or sends bytes."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        set_up(self._socket)
        self._memory = memoryview(bytearray(b"\x01") * max(SIZES))
        with theirs:
            self._peer = subprocess.Popen(
                [sys.executable, str(Path(__file__)), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
            )

    def upload(self, size: int) -> None:
        self._socket.sendall(COMMAND.pack(b"u", size))
        send(self._socket, self._memory[:size])
        if self._socket.recv(1) != b"k":
            raise RuntimeError("the process of the plain socket copy is gone")

    def download(self, size: int) -> None:
        self._socket.sendall(COMMAND.pack(b"d", size))
        receive(self._socket, self._memory[:size])

    def close(self) -> None:
        self._socket.close()
        self._peer.wait(timeout=10)


def serve(end: socket.socket) -> None:
    """The peer's loop: u receives the bytes and answers k, d sends them."""
    set_up(end)
    memory = memoryview(bytearray(b"\x01") * max(SIZES))
    while command := end.recv(COMMAND.size, socket.MSG_WAITALL):
        kind, size = COMMAND.unpack(command)
        if kind == b"u":
            receive(end, memory[:size])
            end.sendall(b"k")
        else:
            send(end, memory[:size])


def descendants(process: str = "self") -> Iterator[int]:
    for task in Path(f"/proc/{process}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield int(child)
            yield from descendants(child)


def faults_of(process: int) -> int:
    """Page faults without input or output since it began: field 10 of its stat."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return 0
    return int(text.rpartition(")")[2].split()[7])


class Faults:
    """Page faults of this process and of the server's, without those of the plain socket's peer."""

    def __init__(self, peer: int) -> None:
        self._servers = [child for child in descendants() if child != peer]

    def count(self) -> tuple[int, int]:
        here = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        return here, sum(map(faults_of, self._servers))

    def during(self, action: Callable[[], object]) -> tuple[int, int]:
        before = self.count()
        action()
        after = self.count()
        return after[0] - before[0], after[1] - before[1]


class Copies:
    """The copies that are measured, all of the same size."""

    def __init__(self, size: int) -> None:
        self._local = torch.ones(size, dtype=torch.uint8)
        self._remote = self._local.to("remote")

    def copy_up(self) -> None:
        self._remote.copy_(self._local)
        torch_remote.synchronize()

    def copy_down(self) -> None:
        self._local.copy_(self._remote)

    def to_remote(self) -> None:
        self._local.to("remote")
        torch_remote.synchronize()

    def to_cpu(self) -> None:
        """As `for ...: y = x.cpu()`: the old result is freed when the new one is there."""
        self._result = self._remote.cpu()

    def actions(self) -> dict[str, tuple[Callable[[], None], str]]:
        return {
            "copy_ up": (self.copy_up, "up"),
            "copy_ down": (self.copy_down, "down"),
            '.to("remote")': (self.to_remote, "up"),
            ".cpu()": (self.to_cpu, "down"),
        }


def shares_of(plain: PlainCopy, size: int) -> dict[str, float]:
    """For each way to copy: the median over all rounds of plain time / our time."""
    actions = Copies(size).actions()
    measures: list[Callable[[], object]] = [
        lambda: plain.upload(size),
        lambda: plain.download(size),
        *[action for action, _ in actions.values()],
    ]
    for measure in measures:
        measure()
        measure()
    samples = interleave(ROUNDS, *[lambda run=run: elapsed(run) for run in measures])
    plain_times = {"up": samples[0], "down": samples[1]}
    return {
        name: statistics.median(
            theirs / ours for theirs, ours in zip(plain_times[way], times, strict=True)
        )
        for (name, (_, way)), times in zip(actions.items(), samples[2:], strict=True)
    }


def rate_of_bulk_copies() -> list[Figure]:
    plain = PlainCopy()
    shares = shares_of(plain, max(SIZES))
    plain.close()
    return [
        Figure(f"{name} of 256 MiB, share of a plain socket", share, BAR, ">=")
        for name, share in shares.items()
    ]


def print_rows(size: int, shares: dict[str, float], faults: Faults) -> None:
    for name, (action, _) in Copies(size).actions().items():
        action()
        here, there = faults.during(action)
        print(f"{size // MIB:>4} {name:<14} {shares[name]:>6.2f} {here:>12} {there:>14}")


def main() -> None:
    plain = PlainCopy()
    torch.ones(1).to("remote").cpu()
    faults = Faults(plain._peer.pid)
    print(f"{'MiB':>4} {'copy':<14} {'share':>6} {'faults here':>12} {'on the server':>14}")
    for size in SIZES:
        print_rows(size, shares_of(plain, size), faults)
    plain.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        with socket.socket(fileno=int(sys.argv[1])) as from_parent:
            serve(from_parent)
    else:
        main()
