"""A tls:// server: large copies against a bare OpenSSL pair, calls against a tcp:// server.

    python benchmarks/python/tls.py

The bare pair is Python's `ssl`, which calls SSL_write and SSL_read, in two processes over loopback
TCP, with blocks of 1 MiB in memory that both ends have used before. `benchmarks/cpp/tls_bulk.cpp`
compares the stream alone with such a pair in C++.
"""

from __future__ import annotations

import os
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from bulk import COMMAND, MIB, receive, send
from figure import Figure, elapsed, interleave, ratio_of_best
from operators import call_times, make_inputs, operators

import torch_remote

SIZE = 256 * MIB
ROUNDS = 7
CALLS = 2000
BAR = 0.8


class BarePair:
    """A process at the other end of a TLS connection that receives or sends bytes."""

    def __init__(self, pem: Path) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        self._peer = subprocess.Popen([sys.executable, str(Path(__file__)), str(pem), str(port)])
        plain, _ = listener.accept()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = context.wrap_socket(plain)
        self._memory = memoryview(bytearray(b"\x01") * SIZE)

    def upload(self) -> None:
        self._socket.sendall(COMMAND.pack(b"u", SIZE))
        send(self._socket, self._memory)
        if self._socket.recv(1) != b"k":
            raise RuntimeError("the process of the bare pair is gone")

    def download(self) -> None:
        self._socket.sendall(COMMAND.pack(b"d", SIZE))
        receive(self._socket, self._memory)

    def close(self) -> None:
        self._socket.close()
        self._peer.wait(timeout=10)


def serve_bare(pem: str, port: int) -> None:
    """The peer's loop: u receives the bytes and answers k, d sends them."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    plain = socket.create_connection(("127.0.0.1", port))
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end = context.wrap_socket(plain, server_side=True)
    memory = memoryview(bytearray(b"\x01") * SIZE)
    while command := end.recv(COMMAND.size):
        kind, size = COMMAND.unpack(command)
        if kind == b"u":
            receive(end, memory[:size])
            end.sendall(b"k")
        else:
            send(end, memory[:size])


@contextmanager
def serving(listen: str, folder: Path) -> Iterator[torch_remote.Machine]:
    command = [sys.executable, "-m", "torch_remote_cli", "serve", "--listen", listen]
    server = subprocess.Popen(
        [*command, "--token-file", str(folder / "token"), "--device", "cpu"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "XDG_STATE_HOME": str(folder)},
    )
    assert server.stdout is not None
    url = server.stdout.readline().removeprefix("listening on ").strip()
    with torch_remote.connect(url, token_file=folder / "token") as machine:
        yield machine
    server.terminate()
    server.wait(timeout=10)


def share_of_copies(device: torch.device, bare: BarePair) -> list[Figure]:
    local = torch.ones(SIZE, dtype=torch.uint8)
    remote = local.to(device)

    def up() -> None:
        remote.copy_(local)
        torch_remote.synchronize()

    def down() -> None:
        local.copy_(remote)

    measures: list[Callable[[], None]] = [bare.upload, up, bare.download, down]
    for measure in measures:
        measure()
    samples = interleave(ROUNDS, *[lambda run=run: elapsed(run) for run in measures])
    rates = [f"{SIZE / MIB / statistics.median(times):.0f}" for times in samples]
    print(f"MiB/s: bare up {rates[0]}, ours {rates[1]}, bare down {rates[2]}, ours {rates[3]}")
    return [
        Figure(
            f"copy_ {way} of 256 MiB over TLS, share of a bare OpenSSL pair",
            statistics.median(a / b for a, b in zip(theirs, ours, strict=True)),
            BAR,
            ">=",
        )
        for way, theirs, ours in (("up", *samples[:2]), ("down", *samples[2:]))
    ]


def cost_of_calls(encrypted: torch.device, plain: torch.device) -> list[Figure]:
    """Time of the calling thread: encryption is the writer's work."""
    ratios = []
    for name in operators(*make_inputs("cpu", 8, 8)):
        calls = [operators(*make_inputs(str(device), 8, 8))[name] for device in (encrypted, plain)]

        def measure(call: Callable[[], object]) -> float:
            torch_remote.synchronize()
            return elapsed(lambda: call_times(call, CALLS), time.thread_time)

        for call in calls:
            measure(call)
        measures = [lambda call=call: measure(call) for call in calls]
        ratios.append(ratio_of_best(*interleave(ROUNDS, *measures)))
    return [
        Figure(
            "client time per cached call over TLS, against TCP",
            statistics.geometric_mean(ratios),
            1.1,
            unit="×",
        )
    ]


def figures_of_tls() -> list[Figure]:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (
            serving("tls://127.0.0.1:0", folder) as encrypted,
            serving("tcp://127.0.0.1:0", folder) as plain,
        ):
            bare = BarePair(folder / "torch-remote" / "tls.pem")
            figures = share_of_copies(encrypted.devices[0], bare)
            bare.close()
            return figures + cost_of_calls(encrypted.devices[0], plain.devices[0])


if __name__ == "__main__":
    if len(sys.argv) > 2:
        serve_bare(sys.argv[1], int(sys.argv[2]))
    else:
        for figure in figures_of_tls():
            print(f"{figure.name:<60} {figure.value:.2f} {figure.unit}")
