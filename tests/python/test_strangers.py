"""What a peer that has proven nothing costs: no process before its first message, few at a time."""

from __future__ import annotations

import re
import select
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
import torch
from helpers import serving, wait_until
from test_failed_logins import FREE, hello, preamble, sessions_beside

import torch_remote

pytestmark = pytest.mark.slow

MOST_UNPROVEN = 4


class Server:
    def __init__(self, url: str, token_file: Path, log: Path) -> None:
        self.url, self.token_file, self.log = url, token_file, log
        self.has_tls = url.startswith("tls://")

    def connect(self) -> torch_remote.Machine:
        return torch_remote.connect(self.url, token_file=self.token_file)

    def send(self, source: str, data: bytes) -> socket.socket:
        port = int(self.url.partition("?")[0].rpartition(":")[2])
        connection = socket.create_connection(("127.0.0.1", port), 30, (source, 0))
        connection.sendall(data)
        return connection

    def first_message(self) -> bytes:
        return client_hello() if self.has_tls else hello()

    def waits(self, peer: str) -> bool:
        return f"its next ones wait peer={peer}" in self.log.read_text()


def client_hello() -> bytes:
    """The first bytes of TLS, as OpenSSL makes them."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    tls = context.wrap_bio(incoming, outgoing)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


@pytest.fixture(params=["tcp", "tls"])
def server(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Server]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    token_file, log = tmp_path / "token", tmp_path / "log"
    listen = f"{request.param}://127.0.0.1:0"
    with serving(listen, "--token-file", str(token_file), log=log) as url:
        yield Server(url, token_file, log)


# Promise 2.
def test_rubbish_silence_and_hanging_up_count_against_their_address(server: Server) -> None:
    began = time.monotonic()
    first = server.first_message()
    rubbish = {
        "127.0.0.2": b"",
        "127.0.0.3": b"GET / HTTP/1.1\r\nHost: example\r\n\r\n",
        "127.0.0.4": preamble(),
        "127.0.0.5": preamble() + first[: len(first) // 2],
        "127.0.0.6": preamble() + bytes(200),
        "127.0.0.7": preamble() + first,
    }
    with ExitStack() as stack:
        for _ in range(FREE):
            stack.enter_context(server.send("127.0.0.8", preamble()))  # and nothing more
        for source, data in rubbish.items():
            for _ in range(FREE):
                server.send(source, data).close()
        for source in [*rubbish, "127.0.0.8"]:
            assert wait_until(partial(server.waits, source)), source
    assert not server.waits("127.0.0.1")
    lines = [re.sub(r"^\S+ \S+ (\[\w+\] )?", "", line) for line in server.log.open()]
    events = [re.split(r" (peer|reason|of|session)=", line)[0] for line in lines]
    minutes = 1 + (time.monotonic() - began) // 60  # each has its own limit
    assert max(events.count(event) for event in events) <= 10 * minutes


# Promise 2.
def test_only_who_has_sent_its_whole_first_message_gets_a_process(server: Server) -> None:
    first = server.first_message()
    with server.connect() as machine, ExitStack() as stack:
        assert torch.ones(2, device=machine.devices[0]).sum().item() == 2
        session = int(machine.status()["pid"])
        for data in (b"", preamble()[:9], preamble(), preamble() + first[:-1]):
            stack.enter_context(server.send("127.0.0.2", data))
        with server.connect() as other:  # the listener has seen all of them
            assert torch.ones(2, device=other.devices[0]).sum().item() == 2
            other_session = int(other.status()["pid"])
            assert set(sessions_beside(session)) <= {other_session}
        with server.send("127.0.0.3", preamble() + first[:-1]) as whole:
            whole.sendall(first[-1:])
            assert len(whole.recv(4, socket.MSG_WAITALL)) == 4


# Promise 2.
def test_an_address_has_at_most_four_processes_that_have_proven_nothing(server: Server) -> None:
    with server.connect() as machine, ExitStack() as stack:
        assert torch.ones(2, device=machine.devices[0]).sum().item() == 2
        session = int(machine.status()["pid"])
        first = preamble() + server.first_message()
        waiting = [
            stack.enter_context(server.send("127.0.0.2", first)) for _ in range(2 * MOST_UNPROVEN)
        ]
        most = 0
        while waiting:  # each gets a process, and its answer or the end of its time
            answered = select.select(waiting, [], [], 0.02)[0]
            most = max(most, len(sessions_beside(session)))
            waiting = [stranger for stranger in waiting if stranger not in answered]
        assert 0 < most <= MOST_UNPROVEN
        with server.connect() as other:
            assert torch.ones(2, device=other.devices[0]).sum().item() == 2


# Promise 2.
def test_one_address_cannot_have_all_sessions(tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    options = ["--token-file", str(token_file), "--max-sessions-per-address", "2"]
    with (
        serving("tcp://127.0.0.1:0", *options) as url,
        torch_remote.connect(url, token_file=token_file) as first,
        torch_remote.connect(url, token_file=token_file) as second,
    ):
        for machine in (first, second):
            assert torch.ones(2, device=machine.devices[0]).sum().item() == 2
        with pytest.raises(torch_remote.ConnectionError, match="at most 2 sessions from one add"):
            torch_remote.connect(url, token_file=token_file)
        second.stop()
        with torch_remote.connect(url, token_file=token_file) as third:
            assert torch.ones(2, device=third.devices[0]).sum().item() == 2
