"""Who fails to authenticate waits before the next session. Nobody else does."""

from __future__ import annotations

import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch
from helpers import DEADLINE, serving, wait_until

import torch_remote

sys.path.append(str(Path(__file__).parent.parent / "fault"))

from proxy import FaultProxy

VERSION = 3
FREE = 5  # failures that cost nothing
TRIES = 5  # a slow machine may delay some of what nobody else delays


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

    def guess(self, source: str, route: int) -> socket.socket:
        """Asks for a session of another client, by its number."""
        connection = self.dial(source)
        connection.sendall(preamble(1, route))
        return connection


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    token_file = tmp_path / "token"
    log = tmp_path / "log"
    with serving("tcp://127.0.0.1:0", "--token-file", str(token_file), log=log) as url:
        yield Server(url, token_file)


class Waiting:
    """A connection that the server answers after some seconds, however slow this machine is."""

    def __init__(self, connection: socket.socket, due: float) -> None:
        self.connection, self.due = connection, due

    def has_answered(self) -> bool:
        """Too early: false where the answer is due."""
        return not self.is_due() and bool(select.select([self.connection], [], [], 0)[0])

    def is_due(self) -> bool:
        return time.monotonic() > self.due

    def waits_its_time(self) -> bool:
        """Until it is answered, or closed where no process is ready in time."""
        answered = select.select([self.connection], [], [], DEADLINE)[0]
        return bool(answered) and time.monotonic() > self.due


@contextmanager
def waiting(
    begin: Callable[[str], socket.socket], source: str, seconds: float = 2
) -> Iterator[Waiting]:
    due = time.monotonic() + seconds - 0.5
    with begin(source) as connection:
        yield Waiting(connection, due)


# Promise 2.
def test_who_fails_often_waits_and_others_do_not(server: Server) -> None:
    # From now on it waits 4 s, or 2 s until the listener has seen the last process end.
    server.fail("127.0.0.2", FREE + 2)
    with waiting(server.begin, "127.0.0.2") as slow:
        server.assert_serves()
        server.assert_serves()
        assert not slow.has_answered()
        assert slow.waits_its_time()

    def is_served_at_once() -> bool:
        with waiting(server.begin, "127.0.0.2") as slow:
            server.assert_serves()
            return not slow.is_due()

    assert any(is_served_at_once() for _ in range(TRIES))


def sessions_beside(pid: int) -> list[int]:
    """The processes of other sessions of the same listener, also those that it has to reap."""
    parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    found = []
    for child in map(int, children):
        with suppress(OSError):  # it has ended meanwhile
            is_session = Path(f"/proc/{child}/comm").read_text().strip() == "tr-session"
            found += [child] if is_session and child != pid else []
    return found


# Promise 2.
def test_the_failures_of_others_delay_no_answer_of_the_listener(server: Server) -> None:
    """Each comes from another address, so that none of them waits."""
    fastest = DEADLINE
    with torch_remote.connect(server.url, token_file=server.token_file) as machine:
        session = int(machine.status()["pid"])
        for i in range(FREE + TRIES):
            server.fail(f"127.0.2.{i + 1}", 1)
            assert wait_until(lambda: sessions_beside(session) == [])  # the listener has noticed
            begin = time.monotonic()
            with server.guess(f"127.0.3.{i + 1}", 4711) as connection:  # the listener answers
                assert connection.recv(4, socket.MSG_WAITALL)
            if i >= FREE:
                fastest = min(fastest, time.monotonic() - begin)
    assert fastest < 0.5


# Promise 2.
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

        def resumes_at_once() -> bool:
            accepted = proxy.accepted
            with waiting(server.begin, "127.0.0.1") as slow:
                proxy.hang_up()
                assert x.add(1).sum().item() == 4
                assert proxy.accepted == accepted + 1
                assert not slow.has_answered()
                return not slow.is_due()

        assert any(resumes_at_once() for _ in range(TRIES))


@contextmanager
def closing_all() -> Iterator[list[socket.socket]]:
    connections: list[socket.socket] = []
    try:
        yield connections
    finally:
        for connection in connections:
            connection.close()


# Promise 2.
def test_40_bad_connects_do_not_delay_a_good_one_and_400_no_client_that_resumes(
    server: Server,
) -> None:
    with (
        FaultProxy(server.url, lambda number: None) as proxy,
        torch_remote.connect(proxy.url, token_file=server.token_file) as machine,
        closing_all() as bad,
    ):
        x = torch.ones(2, device=machine.devices[0])
        assert x.sum().item() == 2
        bad += [server.begin("127.0.0.2") for _ in range(40)]
        server.assert_serves()
        bad += [server.begin("127.0.0.2") for _ in range(400)]
        proxy.hang_up()
        assert x.add(1).sum().item() == 4
        assert proxy.accepted == 2


# Promise 2.
def test_who_guesses_the_ids_of_sessions_waits_and_others_do_not(server: Server) -> None:
    with (
        FaultProxy(server.url, lambda number: None) as proxy,
        torch_remote.connect(proxy.url, token_file=server.token_file) as machine,
    ):
        x = torch.ones(2, device=machine.devices[0])
        assert x.sum().item() == 2
        wrong = int(machine.status()["session"], 16) ^ 1
        for _ in range(FREE):  # the last one waits 1 s
            with server.guess("127.0.0.2", wrong) as connection:
                assert connection.recv(4, socket.MSG_WAITALL)

        def resumes_before_the_answer() -> bool:
            accepted = proxy.accepted
            with waiting(lambda source: server.guess(source, wrong), "127.0.0.2") as slow:
                proxy.hang_up()
                assert x.add(1).sum().item() == 4
                assert proxy.accepted == accepted + 1
                assert not slow.has_answered()
                is_before = not slow.is_due()
                assert slow.waits_its_time()
                return is_before

        assert any(resumes_before_the_answer() for _ in range(TRIES))


# Promise 12.
def test_guesses_write_few_lines_and_how_many_were_left_out(tmp_path: Path) -> None:
    """From many addresses, so that no guess waits."""
    token_file, log = tmp_path / "token", tmp_path / "log"
    with serving("tcp://127.0.0.1:0", "--token-file", str(token_file), log=log) as url:
        server = Server(url, token_file)
        for i in range(100):
            with server.guess(f"127.0.1.{i + 1}", 4711) as connection:
                assert connection.recv(4, socket.MSG_WAITALL)
    lines = log.read_text().splitlines()
    refused = [line for line in lines if " a connection was refused " in line]
    left_out = [line for line in lines if "lines were left out" in line]
    assert len(refused) == 10
    assert len(left_out) == 1
    assert 'of="a connection was refused" lines=90' in left_out[0]


# Promise 2.
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
