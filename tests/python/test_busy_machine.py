"""What tests use so that they pass on a busy machine too."""

from __future__ import annotations

import socket
from pathlib import Path

import pretending
import pytest
from helpers import ANSWER_TIME, assert_runs, run_python, without_waits

import torch_remote

WAITING = b"\x02\x00\x00\x00\x03\x03"  # a block of src/wire/handshake.h
TOLD = (
    "torch_remote: waiting for unix:///tmp/s to answer\n"
    "2026-11-19T20:30:00.123+00:00 warning the server has no process ready for this client, "
    "which waits server=unix:///tmp/s\n"
    "torch_remote: waiting for 3 calls to finish (Ctrl-C ends the wait)\n"
)
TELLING = f"import sys; print({TOLD!r} + 'mine', file=sys.stderr)"


def test_the_pretended_server_passes_on_that_its_client_waits() -> None:
    server, of_server = socket.socketpair()
    client, of_client = socket.socketpair()
    with server, of_server, client, of_client:
        of_server.sendall(WAITING * 2 + b"\x05\x00\x00\x00hello\x07\x00\x00\x00welcome")
        pretending.pass_handshake_on(server, client, bytes.title, bytes.upper)
        client.shutdown(socket.SHUT_WR)
        with of_client.makefile("rb") as received:
            assert received.read() == WAITING * 2 + b"\5\0\0\0Hello\7\0\0\0WELCOME"


def test_what_depends_on_the_load_is_left_out_of_stderr() -> None:
    assert without_waits(TOLD + "mine\n") == "mine\n"
    assert run_python(TELLING).stderr == run_python(TELLING, anew=True).stderr == "mine\n"
    assert run_python(TELLING, keep_waits=True).stderr == TOLD + "mine\n"
    with pytest.raises(AssertionError, match="mine"):
        assert_runs(TELLING)


def test_a_client_of_tests_waits_longer_for_the_first_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ANSWER_TIME, "1s")  # the same variable: 120 s would be long for a test
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{tmp_path}/s")
        listener.listen()
        with pytest.raises(torch_remote.ConnectionError, match="said nothing within 1 s"):
            torch_remote.connect(f"unix://{tmp_path}/s")
