"""Upload and download of 256 MiB against a plain socket copy of the same bytes."""

from __future__ import annotations

import mmap
import socket
import subprocess
import sys
from pathlib import Path

import torch
from figure import Figure, elapsed, interleave, ratio_of_best

import torch_remote

SIZE = 256 << 20
ROUNDS = 5


class PlainCopy:
    """A process at the other end of a socket pair that receives or sends SIZE bytes."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        self._bytes = bytearray(b"\x01") * SIZE
        with theirs:
            self._peer = subprocess.Popen(
                [sys.executable, str(Path(__file__)), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
            )

    def upload(self) -> None:
        self._socket.sendall(b"u")
        self._socket.sendall(self._bytes)
        if self._socket.recv(1) != b"k":
            raise RuntimeError("the process of the plain socket copy is gone")

    def download(self) -> None:
        self._socket.sendall(b"d")
        receive_into_new_memory(self._socket)

    def close(self) -> None:
        self._socket.close()
        self._peer.wait(timeout=10)


def receive_into_new_memory(source: socket.socket) -> None:
    with mmap.mmap(-1, SIZE) as memory, memoryview(memory) as view:
        received = 0
        while received < SIZE:
            with view[received:] as rest:
                count = source.recv_into(rest)
            if not count:
                raise EOFError("socket closed in the middle of a copy")
            received += count


def serve(connection: socket.socket) -> None:
    """The peer's loop: u receives the bytes and answers k, d sends them."""
    outgoing = bytearray(b"\x01") * SIZE
    while command := connection.recv(1):
        if command == b"u":
            receive_into_new_memory(connection)
            connection.sendall(b"k")
        else:
            connection.sendall(outgoing)


def rate_of_bulk_copies() -> list[Figure]:
    plain = PlainCopy()
    local = torch.ones(SIZE, dtype=torch.uint8)
    remote = local.to("remote")

    def upload() -> None:
        local.to("remote")
        torch_remote.synchronize()

    measures = [plain.upload, upload, plain.download, remote.cpu]
    samples = interleave(ROUNDS, *[lambda action=action: elapsed(action) for action in measures])
    plain.close()
    plain_up, remote_up, plain_down, remote_down = samples
    return [
        Figure(
            "upload of 256 MiB, share of a socket copy",
            ratio_of_best(plain_up, remote_up),
            0.6,
            ">=",
        ),
        Figure(
            "download of 256 MiB, share of a socket copy",
            ratio_of_best(plain_down, remote_down),
            0.6,
            ">=",
        ),
    ]


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as from_parent:
        serve(from_parent)
