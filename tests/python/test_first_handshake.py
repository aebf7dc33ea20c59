"""A connection that is cut, or a peer that is silent, in the first handshake."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch
from helpers import ANSWER_TIME, DEADLINE, serving, wait_until

import torch_remote

# What ends soon does not take the 60 s of TORCH_REMOTE_PATIENCE; a busy machine takes a while too.
WITHIN_S = 40
PREAMBLE = 32


class Cutter:
    """Forwards connections to a server, and cuts the first ones in the handshake."""

    def __init__(
        self, listener: socket.socket, server: str, cuts: int, there: int, back: int
    ) -> None:
        self.listener, self.server = listener, server
        self.cuts, self.limits = cuts, (there, back)
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                self.connections += 1
                upstream = socket.socket(socket.AF_UNIX)
                upstream.connect(self.server)
                is_cut = self.connections <= self.cuts
                for source, target, limit in zip(
                    (client, upstream), (upstream, client), self.limits, strict=True
                ):
                    arguments = (source, target, limit if is_cut else None)
                    threading.Thread(target=_pass_on, args=arguments, daemon=True).start()


def _pass_on(source: socket.socket, target: socket.socket, limit: int | None) -> None:
    """Forwards this many bytes; then resets both connections."""
    left = limit
    with suppress(OSError):
        while left is None or left > 0:
            data = source.recv(65536 if left is None else left)
            if not data:
                break
            target.sendall(data)
            left = None if left is None else left - len(data)
    for end in (source, target):
        with suppress(OSError):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.shutdown(socket.SHUT_RDWR)


@contextmanager
def listening(scheme: str, folder: Path) -> Iterator[tuple[socket.socket, str]]:
    """A socket, and the URL under which a client dials it."""
    family = socket.AF_UNIX if scheme == "unix" else socket.AF_INET
    with socket.socket(family) as listener:
        listener.bind(f"{folder}/front" if scheme == "unix" else ("127.0.0.1", 0))
        listener.listen()
        name = listener.getsockname()
        yield listener, f"unix://{name}" if scheme == "unix" else f"tcp://127.0.0.1:{name[1]}"


def assert_serves(url: str) -> None:
    with torch_remote.connect(url) as machine:
        assert torch.arange(3, device=machine.devices[0]).tolist() == [0, 1, 2]


def seconds_to_fail(url: str, words: str) -> float:
    begin = time.monotonic()
    with pytest.raises(torch_remote.ConnectionError, match=words) as error:
        assert_serves(url)
    assert url in str(error.value)
    assert "\n" not in str(error.value).strip()
    return time.monotonic() - begin


@pytest.mark.parametrize("scheme", ["unix", "tcp"])
@pytest.mark.parametrize(
    ("there", "back"),
    [(0, 1 << 20), (PREAMBLE, 1 << 20), (1 << 20, 0), (1 << 20, 9), (1 << 20, 150)],
    ids=["at once", "after the preamble", "at HELLO", "in HELLO", "in WELCOME"],
)
def test_a_connection_cut_in_the_first_handshake_is_tried_again(
    scheme: str, there: int, back: int, tmp_path: Path
) -> None:
    with serving(f"unix://{tmp_path}/s"), listening(scheme, tmp_path) as (listener, url):
        cutter = Cutter(listener, f"{tmp_path}/s", 2, there, back)
        assert_serves(url)
        assert cutter.connections == 3


def test_without_patience_a_cut_in_the_first_handshake_is_an_error_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_REMOTE_PATIENCE", "0")
    with serving(f"unix://{tmp_path}/s"), listening("unix", tmp_path) as (listener, url):
        Cutter(listener, f"{tmp_path}/s", 1, 1 << 20, 9)
        assert seconds_to_fail(url, "handshake") < WITHIN_S
        assert_serves(url)


def test_a_peer_that_always_cuts_is_an_error_when_the_patience_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_REMOTE_PATIENCE", "1s")
    with serving(f"unix://{tmp_path}/s"), listening("tcp", tmp_path) as (listener, url):
        cutter = Cutter(listener, f"{tmp_path}/s", 1000, 1 << 20, 0)
        assert 1 <= seconds_to_fail(url, "TORCH_REMOTE_PATIENCE") < WITHIN_S
        assert cutter.connections > 2


def test_a_peer_that_hangs_up_every_time_is_an_error_soon(tmp_path: Path) -> None:
    with serving(f"unix://{tmp_path}/s"), listening("tcp", tmp_path) as (listener, url):
        cutter = Cutter(listener, f"{tmp_path}/s", 1000, 0, 0)
        assert seconds_to_fail(url, "hung up 8 times in a row") < WITHIN_S
        assert cutter.connections == 8


@pytest.mark.parametrize("scheme", ["unix", "tcp"])
def test_a_peer_that_accepts_and_says_nothing_is_told_and_an_error_soon(
    scheme: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(ANSWER_TIME)
    with listening(scheme, tmp_path) as (_, url):
        assert seconds_to_fail(url, "said nothing within") < WITHIN_S
    assert f"torch_remote: waiting for {url} to answer\n" in capfd.readouterr().err


class Staller(Cutter):
    """Forwards the first answer of each server but for its last bytes, until `go_on` is set."""

    go_on = threading.Event()

    def _accept(self) -> None:
        with suppress(OSError):
            client, _ = self.listener.accept()
            upstream = socket.socket(socket.AF_UNIX)
            upstream.connect(self.server)
            threading.Thread(target=_pass_on, args=(client, upstream, None), daemon=True).start()
            hello = upstream.recv(65536)
            client.sendall(hello)
            welcome = upstream.recv(65536)
            client.sendall(welcome[:9])
            assert self.go_on.wait(DEADLINE)
            client.sendall(welcome[9:])
            _pass_on(upstream, client, None)


def test_a_handshake_that_stops_before_its_end_is_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with serving(f"unix://{tmp_path}/s"), listening("unix", tmp_path) as (listener, url):
        staller = Staller(listener, f"{tmp_path}/s", 0, 0, 0)
        connecting = threading.Thread(target=assert_serves, args=(url,))
        connecting.start()
        said = ""

        def is_told() -> bool:
            nonlocal said
            said += capfd.readouterr().err
            return f"torch_remote: waiting for {url} to answer\n" in said

        assert wait_until(is_told), said
        staller.go_on.set()
        connecting.join(DEADLINE)
        assert not connecting.is_alive()


def test_a_server_that_nobody_listens_for_is_an_error_at_once(tmp_path: Path) -> None:
    url = f"unix://{tmp_path}/nobody"
    assert seconds_to_fail(url, "No such file") < WITHIN_S / 2
    with pytest.raises(torch_remote.ConnectionError) as error:
        torch_remote.connect(url)
    assert str(error.value).count(f"{url}: ") == 1
    (tmp_path / "file").touch()
    with socket.socket(socket.AF_UNIX) as ended:
        ended.bind(f"{tmp_path}/ended")
    for name, words in (
        ("nobody", "start a server there with `torch-remote serve --listen unix://"),
        ("file", "what is there is no socket"),
        ("ended", "the server that made this socket has ended"),
    ):
        with pytest.raises(torch_remote.ConnectionError, match=f"What to do: {words}"):
            torch_remote.connect(f"unix://{tmp_path}/{name}")


WAITING = struct.pack("<IBB", 2, 3, 3)


class Queue(Cutter):
    """Tells each client twice that it waits, in two parts, before it forwards its connection."""

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                first = client.recv(1 << 16)
                self.connections += 1
                client.sendall(WAITING[:3])
                client.sendall(WAITING[3:] + WAITING)
                upstream = socket.create_connection(("127.0.0.1", int(self.server)))
                upstream.sendall(first)
                for source, target in ((client, upstream), (upstream, client)):
                    threading.Thread(
                        target=_pass_on, args=(source, target, None), daemon=True
                    ).start()


# Promise 2a.
@pytest.mark.parametrize("scheme", ["tcp", "tls"])
def test_a_client_that_is_told_to_wait_waits_and_says_so(
    scheme: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    token = tmp_path / "token"
    with (
        serving(f"{scheme}://127.0.0.1:0", "--token-file", str(token)) as url,
        listening("tcp", tmp_path) as (listener, front),
    ):
        port = url.partition("?")[0].rpartition(":")[2]
        queue = Queue(listener, port, 0, 0, 0)
        through = url.replace(f":{port}", f":{front.rpartition(':')[2]}")
        with torch_remote.connect(through, token_file=token) as machine:
            assert torch.arange(3, device=machine.devices[0]).tolist() == [0, 1, 2]
        assert queue.connections == 1
    assert capfd.readouterr().err.count("no process ready for this client, which waits") == 1
