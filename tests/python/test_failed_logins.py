"""Who fails to authenticate waits before the next session. Nobody else does."""

from __future__ import annotations

import select
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from helpers import serving

import torch_remote

sys.path.append(str(Path(__file__).parent.parent / "fault"))

from proxy import FaultProxy

VERSION = 3
FREE = 5  # failures that cost nothing


def preamble(intent: int = 0, route: int = 0) -> bytes:
    return b"TREMOTE\n" + struct.pack("<HHB3xQ8x", VERSION, VERSION, intent, route)


def hello() -> bytes:
    body = struct.pack("<BHH", 1, VERSION, VERSION) + bytes(32) + b"\x032.x" + b"\0\0"
    body += bytes(32) + b"\0" + b"\0"
    return struct.pack("<I", len(body)) + body


class Server:
    def __init__(self, url: str, token_file: Path) -> None:
        self.url, self.token_file = url, token_file

    def dial(self, source: str) -> socket.socket:
        port = int(self.url.rpartition(":")[2])
        return socket.create_connection(("127.0.0.1", port), 30, (source, 0))

    def fail(self, source: str, times: int) -> None:
        """Says hello and leaves without a proof."""
        for _ in range(times):
            with self.dial(source) as connection:
                connection.sendall(preamble() + hello())
                assert connection.recv(4, socket.MSG_WAITALL)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(4096):
                    pass

    def begin(self, source: str) -> socket.socket:
        """A new session that waits for the server's HELLO."""
        connection = self.dial(source)
        connection.sendall(preamble() + hello())
        return connection

    def assert_serves(self) -> None:
        with torch_remote.connect(self.url, token_file=self.token_file) as machine:
            assert torch.ones(2, device=machine.devices[0]).sum().item() == 2


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    token_file = tmp_path / "token"
    with serving("tcp://127.0.0.1:0", "--token-file", str(token_file)) as url:
        yield Server(url, token_file)


def has_answered(connection: socket.socket) -> bool:
    return bool(select.select([connection], [], [], 0)[0])


def test_who_fails_often_waits_and_others_do_not(server: Server) -> None:
    server.fail("127.0.0.2", FREE + 2)  # from now on it waits 4 s
    with server.begin("127.0.0.2") as slow:
        server.assert_serves()
        server.assert_serves()
        assert not has_answered(slow)
        assert slow.recv(4, socket.MSG_WAITALL)  # it is served in its time


def test_a_client_that_resumes_does_not_wait_although_its_address_has_failed(
    server: Server,
) -> None:
    with (
        FaultProxy(server.url, lambda number: None) as proxy,
        torch_remote.connect(proxy.url, token_file=server.token_file) as machine,
    ):
        x = torch.ones(2, device=machine.devices[0])
        assert x.sum().item() == 2
        server.fail("127.0.0.1", FREE + 2)
        with server.begin("127.0.0.1") as slow:
            proxy.hang_up()
            assert x.add(1).sum().item() == 4
            assert proxy.accepted == 2
            assert not has_answered(slow)


def test_silent_connections_of_one_address_do_not_keep_a_client_from_its_session(
    server: Server,
) -> None:
    """They are ended in its place: it is the only one of its address."""
    with (
        FaultProxy(server.url, lambda number: None) as proxy,
        torch_remote.connect(proxy.url, token_file=server.token_file) as machine,
    ):
        x = torch.ones(2, device=machine.devices[0])
        assert x.sum().item() == 2
        route = int(machine.status()["session"], 16)
        silent = [server.dial("127.0.0.2") for _ in range(40)]
        try:
            for connection in silent:
                connection.sendall(preamble(1, route))
            waiting = [server.dial("127.0.0.2") for _ in range(40)]
            proxy.hang_up()
            assert x.add(1).sum().item() == 4
            assert proxy.accepted == 2
        finally:
            for connection in [*silent, *waiting]:
                connection.close()
