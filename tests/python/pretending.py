"""A CPU server that looks like another to a client: its HELLO or WELCOME is changed on the way.

As a CUDA server: the client then takes CUDA's branches, and the server's log shows its calls.
Kernels that only CUDA has fail. As an older server: the client then does without what that lacks.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from helpers import serving

CUDNN = 91900
CAPABILITY = 9
PROGRAMS = 1 << 9  # kProgramsCapability in src/wire/handshake.h
Change = Callable[[bytes], bytes]
# The body of what a server without a ready process tells a client from time to time, before
# anything else: src/wire/handshake.h.
WAITING = b"\x03\x03"


@contextmanager
def pretended_cuda(folder: Path) -> Iterator[tuple[str, Callable[[], list[str]]]]:
    """Yields the URL of the pretended server, and a function that reads the calls it tried."""
    prefix = folder / "calls"

    def read_calls() -> list[str]:
        return [line for path in folder.glob("calls.*") for line in path.read_text().split()]

    options = ("--device", "cpu", "--log-calls", str(prefix))
    with _changed_server(folder, *options, welcome=changed_welcome) as url:
        yield url, read_calls


@contextmanager
def older_server(folder: Path, lacking: int) -> Iterator[str]:
    """Yields the URL of a server that lacks the capabilities with these bits."""

    def change(hello: bytes) -> bytes:
        at = _skip_text(hello, 1 + 2 + 2 + 32)  # tag, versions, nonce; torch
        capabilities, end = _read_varint(hello, at)
        assert capabilities & lacking == lacking
        return hello[:at] + _varint(capabilities & ~lacking) + hello[end:]

    with _changed_server(folder, hello=change) as url:
        yield url


def _unchanged(body: bytes) -> bytes:
    return body


@contextmanager
def _changed_server(
    folder: Path, *options: str, hello: Change = _unchanged, welcome: Change = _unchanged
) -> Iterator[str]:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{folder}/changed.sock")
    listener.listen()
    with listener, serving(f"unix://{folder}/real.sock", *options) as url:
        relay = partial(_relay, listener, url, hello, welcome)
        threading.Thread(target=relay, daemon=True).start()
        yield f"unix://{folder}/changed.sock"
        listener.shutdown(socket.SHUT_RDWR)  # ends accept()


def _relay(listener: socket.socket, url: str, hello: Change, welcome: Change) -> None:
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        server = socket.socket(socket.AF_UNIX)
        server.connect(url.removeprefix("unix://"))
        back = partial(_answer, server, client, hello, welcome)
        for work in (partial(_pass_on, client, server), back):
            threading.Thread(target=work, daemon=True).start()


def _answer(server: socket.socket, client: socket.socket, hello: Change, welcome: Change) -> None:
    pass_handshake_on(server, client, hello, welcome)
    _pass_on(server, client)


def pass_handshake_on(
    server: socket.socket, client: socket.socket, hello: Change, welcome: Change
) -> None:
    while (first := _read_block(server)) == WAITING:
        client.sendall(_block(first))
    client.sendall(_block(hello(first)))
    client.sendall(_block(welcome(_read_block(server))))


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:  # the other end is closed
        pass


def _read_exactly(stream: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = stream.recv(count - len(data))
        assert part, "the server hung up"
        data += part
    return data


def _read_block(stream: socket.socket) -> bytes:
    (length,) = struct.unpack("<I", _read_exactly(stream, 4))
    return _read_exactly(stream, length)


def _block(body: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body


def changed_welcome(body: bytes) -> bytes:
    """The same server with a GPU and cuDNN. The grammar is in docs/protocol.md."""
    at = 4  # tag, answer, version
    at = _skip_text(body, at) + 32  # session, secret
    at = _skip_text(body, _read_varint(body, at)[1])  # lease, host
    at = _skip_text(body, _read_varint(body, at)[1])  # pid, torch
    at += 3  # mkldnn and its types
    after_cudnn = _read_varint(body, at)[1]
    count_at = after_cudnn + 32
    count, kind_at = _read_varint(body, count_at)
    assert count == 1
    name_end = _skip_text(body, kind_at + 1)
    memory_end = _read_varint(body, name_end)[1]
    major_end = _read_varint(body, memory_end)[1]
    return (
        body[:at]
        + _varint(CUDNN)
        + body[after_cudnn:kind_at]
        + b"\x01"
        + body[kind_at + 1 : memory_end]
        + _varint(CAPABILITY)
        + body[major_end:]
    )


def _read_varint(body: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (body[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if body[at - 1] < 0x80:
            return value, at


def _skip_text(body: bytes, at: int) -> int:
    length, start = _read_varint(body, at)
    return start + length


def _varint(value: int) -> bytes:
    parts = []
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])
