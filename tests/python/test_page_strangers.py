"""`torch-remote page` and who has no token: what they can send, hold and keep others from."""

from __future__ import annotations

import http.client
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from helpers import DEADLINE

from torch_remote_cli.page_connections import MOST, Connections
from torch_remote_cli.page_server import MOST_HEAD, PageServer

TOKEN = "a token"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


class Figures:
    def told(self, history: str, after: int) -> dict[str, object]:
        return {"history": history, "after": after}


@pytest.fixture
def server() -> Iterator[PageServer]:
    figures: Any = Figures()
    with PageServer(("127.0.0.1", 0), TOKEN, figures) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def connect(server: PageServer) -> http.client.HTTPConnection:
    host, port = server.server_address[:2]
    return http.client.HTTPConnection(str(host), int(port), timeout=DEADLINE)


def status_of(connection: http.client.HTTPConnection, path: str, **headers: str) -> int:
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    answer.read()
    return answer.status


# Promise 13.
def test_a_long_cookie_is_refused_before_it_is_read(server: PageServer) -> None:
    for cookie in ('a="' + "\\" * 60_000, "a=" + "b" * MOST_HEAD, "; ".join(["a=b"] * 1200)):
        assert status_of(connect(server), "/api/figures", Cookie=cookie) == 431
    assert status_of(connect(server), f"/{'a' * MOST_HEAD}", **BEARER) == 431
    assert status_of(connect(server), "/api/figures", Padding="a" * 3800, **BEARER) == 200


# Promise 13.
@pytest.mark.parametrize("path", ["http://[", "http://[::1", "http://[x]y/", "/\xff", "*", "?"])
def test_no_address_makes_the_page_print_a_traceback(
    path: str, server: PageServer, capfd: pytest.CaptureFixture[str]
) -> None:
    for method in ("GET", "POST"):
        with socket.create_connection(server.server_address[:2], DEADLINE) as connection:
            request = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"
            connection.sendall(request.encode("latin-1"))
            answer = connection.makefile("rb").read()
        assert re.match(rb"HTTP/1\.1 4\d\d |<!DOCTYPE", answer), answer
    assert status_of(connect(server), "/", **BEARER) == 200
    assert capfd.readouterr() == ("", "")


# Promise 13.
def test_the_cookie_is_found_among_others(server: PageServer) -> None:
    own = f"{server.cookie_name}={server.cookie}"
    for cookie in (
        own,
        f"a=b; {own}",
        f"{own};a=b",
        f'a="; {own}',
        f"{server.cookie_name}=x; {own}",
    ):
        assert status_of(connect(server), "/api/figures", Cookie=cookie) == 200
    for cookie in (f"{own}x", f"x{own}", server.cookie_name, f"{server.cookie_name}=", ";;=;"):
        assert status_of(connect(server), "/api/figures", Cookie=cookie) == 401


# Promise 13.
def test_a_connection_stays_open_only_for_who_has_shown_the_token(server: PageServer) -> None:
    def is_kept(**headers: str) -> bool:
        connection = connect(server)
        connection.request("GET", "/", headers=headers)
        answer = connection.getresponse()
        answer.read()
        return not answer.will_close and connection.sock is not None

    assert is_kept(**BEARER)
    assert is_kept(Cookie=f"{server.cookie_name}={server.cookie}")
    assert not is_kept()
    assert not is_kept(Authorization="Bearer wrong")


# Promise 13.
def test_silent_connections_make_room_and_the_owner_is_served(server: PageServer) -> None:
    address = server.server_address[:2]
    with ExitStack() as open_until_here:
        owner = connect(server)
        assert status_of(owner, "/api/figures", **BEARER) == 200
        silent = [
            open_until_here.enter_context(socket.create_connection(address, DEADLINE))
            for _ in range(3 * MOST)
        ]
        assert status_of(connect(server), "/api/figures", **BEARER) == 200
        for connection in silent[: 2 * MOST]:
            assert connection.recv(1) == b"", "more connections are open than there may be"
        assert status_of(owner, "/api/figures", **BEARER) == 200, "who has the token keeps its own"


# Promise 13.
def test_the_oldest_without_a_token_gives_way_and_only_then_one_with() -> None:
    connections = Connections(most=2)
    pairs = [socket.socketpair() for _ in range(4)]
    ours = [pair[0] for pair in pairs]

    def leaves_when_ended(each: socket.socket) -> threading.Thread:
        thread = threading.Thread(target=lambda: (each.recv(1), connections.remove(each)))
        thread.start()
        return thread

    assert connections.add(ours[0]) and connections.add(ours[1])
    connections.note_token(ours[0])
    thread = leaves_when_ended(ours[1])
    assert connections.add(ours[2])
    thread.join(DEADLINE)
    connections.note_token(ours[2])
    thread = leaves_when_ended(ours[0])
    assert connections.add(ours[3])
    thread.join(DEADLINE)
    for pair in pairs:
        for end in pair:
            end.close()
