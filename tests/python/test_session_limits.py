"""What a session that was taken over cannot use up or end: the log, descriptors, rights. An
operator of a library is the attacker's code."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
import torch
from helpers import DEADLINE, is_alive, wait_until
from library.build import library

import torch_remote
from torch_remote_cli import server_program

pytestmark = pytest.mark.slow

NOBODY = 65534


class Server:
    def __init__(self, url: str, token: Path, process: subprocess.Popen[bytes]) -> None:
        self.url, self.token, self.process = url, token, process

    def connect(self) -> torch_remote.Machine:
        return torch_remote.connect(self.url, token_file=self.token)

    def children(self) -> list[int]:
        return children_of(self.process.pid)


def children_of(pid: int) -> list[int]:
    return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def name_of(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


@contextmanager
def started(
    folder: Path,
    log: int,
    *options: str,
    before: tuple[str, ...] = (),
    listen: str = "tcp://127.0.0.1:0",
) -> Iterator[Server]:
    """A server whose log is a descriptor."""
    program = server_program.find()
    assert program is not None
    torch.ops.load_library(library())
    copy = folder / "libattack.so"
    copy.write_bytes(library().read_bytes())
    token = folder / "token"
    command = [*before, str(program.resolve()), "serve", "--listen", listen]
    command += ["--token-file", str(token), "--library", str(copy), "--device", "cpu", *options]
    environment = {**os.environ, "TORCH_REMOTE_LOG": "info"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environment)
    try:
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        assert line.startswith("listening on "), line
        yield Server(line.removeprefix("listening on ").strip(), token, process)
    finally:
        process.terminate()
        process.communicate(timeout=DEADLINE)


def attempt(machine: torch_remote.Machine, what: str, path: str = "", pid: int = 0) -> int:
    return int(torch.ops.tests.attempt(torch.zeros(1, device=machine.devices[0]), what, path, pid))


def assert_works(machine: torch_remote.Machine) -> None:
    assert torch.ones(3, device=machine.devices[0]).sum().item() == 3


def id_of(machine: torch_remote.Machine) -> str:
    found = re.search(r"[0-9a-f]{8}", str(machine.status()["session"]))
    assert found is not None
    return found[0]


# Promise 12.
def test_a_session_neither_ends_nor_reads_nor_fills_the_log(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()  # as systemd's is
    text = bytearray()

    def read() -> None:  # all the time, as systemd does
        while got := ours.recv(1 << 16):
            text.extend(got)

    def log() -> str:
        return bytes(text).decode()

    reading = threading.Thread(target=read)
    reading.start()

    def is_heard(machine: torch_remote.Machine, line: str) -> bool:
        """A line is lost where the reader is slow for a moment: the listener does not wait."""
        assert attempt(machine, "print", line, 1) == 0
        end = time.monotonic() + 1
        while line not in log() and time.monotonic() < end:
            time.sleep(0.01)
        return line in log()

    with ExitStack() as stack:
        stack.callback(theirs.close)  # ends the thread
        server = stack.enter_context(started(tmp_path, theirs.fileno()))
        attacker, neighbour = (stack.enter_context(server.connect()) for _ in range(2))
        assert_works(attacker)
        assert attempt(attacker, "end the log") != 0
        assert wait_until(partial(is_heard, neighbour, "is here\n"))
        assert f"[{id_of(neighbour)}] is here\n" in log()

        assert attempt(attacker, "print", "own", 1) == 0
        attempt(attacker, "read the log")  # takes nothing but what it has written itself
        before = len(log())
        for i in range(20):
            attempt(attacker, "print", "\x1b[2J\u009b[2J" + "x" * 200 + "\n", 1000)
            assert wait_until(partial(is_heard, neighbour, f"is still here: {i}\n"))
        assert len(log()) - before < 200_000  # of 4 MB
        assert not {c for c in log() if c != "\n" and (c < " " or "\x7f" <= c < "\xa0")}
        assert "\\x1b[2J\\u009b[2J" in log()
        for line in log().splitlines():  # none is another's
            assert ("xxx" in line) <= line.startswith(f"[{id_of(attacker)}] "), line

        assert attempt(neighbour, "print", "last words", 1) == 0
        name = id_of(neighbour)
        with suppress(Exception):
            attempt(neighbour, "crash")
        assert wait_until(lambda: "a session was killed" in log())
        assert log().index(f"[{name}] last words\n") < log().index("a session was killed")
        attacker.stop()
        assert wait_until(lambda: "lines of a session were left out" in log())
    reading.join()
    ours.close()


# Promise 12.
def test_a_log_that_nobody_reads_holds_neither_the_listener_nor_its_sessions(
    tmp_path: Path,
) -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, 1031, 4096)  # F_SETPIPE_SZ
    with ExitStack() as stack:
        server = stack.enter_context(started(tmp_path, writer))
        for _ in range(3):
            machine = stack.enter_context(server.connect())
            for _ in range(5):
                attempt(machine, "print", "x" * 1000 + "\n", 200)
            assert_works(machine)
    os.close(reader)
    os.close(writer)


def cut_connections(port: int) -> int:
    """Shuts every connection of this process to that port. Returns how many."""
    count = 0
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if not str(link.readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(link.name))) as own:
                if own.family == socket.AF_INET and own.getpeername()[1] == port:
                    own.shutdown(socket.SHUT_RDWR)
                    count += 1
    return count


# Promise 14a.
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a server as another user")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="there is no setpriv")
@pytest.mark.parametrize(("sandbox", "most"), [("auto", 0), ("off", 250)])
def test_descriptors_on_their_way_from_one_session_keep_nobody_out(sandbox: str, most: int) -> None:
    folder = Path(tempfile.mkdtemp(dir="/tmp", prefix="torch-remote-"))
    os.chown(folder, NOBODY, NOBODY)
    before = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    program = server_program.find()
    try:
        if subprocess.run([*before, "test", "-x", str(program)], check=False).returncode != 0:
            pytest.skip("the program cannot be read by another user")
        with ExitStack() as stack:
            limited = ("prlimit", "--nofile=1024:4096", *before)
            server = stack.enter_context(started(folder, 2, "--sandbox", sandbox, before=limited))
            attacker, neighbour = (stack.enter_context(server.connect()) for _ in range(2))
            assert_works(neighbour)
            assert attempt(attacker, "send descriptors") <= most
            port = int(server.url.rpartition(":")[2])
            assert cut_connections(port) >= 2
            assert_works(neighbour)
            assert_works(stack.enter_context(server.connect()))
    finally:
        shutil.rmtree(folder)


# Promise 14.
def test_a_session_gives_its_client_no_descriptor(tmp_path: Path) -> None:
    with (
        started(tmp_path, 2, listen=f"unix://{tmp_path}/s") as server,
        server.connect() as machine,
    ):
        assert_works(machine)
        assert attempt(machine, "send descriptors") == 0
        assert_works(machine)


# Promise 7.
@pytest.mark.parametrize(
    ("what", "count", "words"),
    [
        ("take memory", 1500, r"it had \d+ MiB of memory, and a session may have \d+"),
        ("take threads", 16 * max(os.cpu_count() or 0, 16) + 1, r"it had \d+ threads, and a"),
    ],
)
def test_a_session_that_evades_the_kernels_limits_is_killed(
    what: str, count: int, words: str, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(started(tmp_path, 2, "--max-memory", "64MiB"))
        neighbour = stack.enter_context(server.connect())
        attacker = server.connect()
        session = int(attacker.status()["pid"])
        with suppress(torch_remote.SessionLost):
            assert attempt(attacker, what, pid=count) == 0
        assert wait_until(lambda: not is_alive(session))
        with pytest.raises(torch_remote.SessionLost, match=words):
            torch.ones(3, device=attacker.devices[0]).sum().item()
        assert_works(neighbour)
        with suppress(torch_remote.RemoteError):
            attacker.stop()


# Promise 7.
def test_a_session_cannot_use_memory_of_the_kernel_that_no_limit_counts(tmp_path: Path) -> None:
    """Its address space is limited, because each 2 MiB that it touches have a page table."""
    with (
        started(tmp_path, 2, "--max-memory", "100MiB") as server,
        server.connect() as attacker,
        server.connect() as neighbour,
    ):
        session = int(attacker.status()["pid"])
        assert_works(attacker)
        assert attempt(attacker, "take page tables", pid=1000) == errno.ENOMEM
        tables = int(states_of_threads(session)[0]["VmPTE"].split()[0])
        assert tables < 200 << 10  # KiB
        assert attempt(attacker, "lock parts", pid=10) == errno.EPERM
        for machine in (attacker, neighbour):
            assert_works(machine)


def states_of_threads(pid: int) -> list[dict[str, str]]:
    files = Path(f"/proc/{pid}/task").glob("*/status")
    return [dict(line.split(":\t", 1) for line in f.read_text().splitlines()) for f in files]


# Promise 14.
def test_processes_of_a_server_are_confined_before_they_read_a_strangers_byte(
    tmp_path: Path,
) -> None:
    kept = {"CapBnd"} if os.geteuid() != 0 else set()
    with started(tmp_path, 2, "--cache", str(tmp_path / "cache")) as server:

        def spares() -> list[int]:
            return [pid for pid in server.children() if name_of(pid) == "tr-spare"]

        assert wait_until(lambda: bool(spares()))
        spare = spares()[0]
        (helper,) = children_of(spare)
        with server.connect() as machine:
            session = int(machine.status()["pid"])
            assert session == spare
            for pid in (*spares(), session, helper):
                for state in states_of_threads(pid):
                    sets = {name for name in state if name.startswith("Cap")}
                    full = {name for name in sets if int(state[name], 16) != 0}
                    assert full <= kept, (name_of(pid), full)
                    assert state["NoNewPrivs"] == "1"
                    assert state["Seccomp"] == "2"
            limits = Path(f"/proc/{session}/limits").read_text()
            most = [line.split()[3:5] for line in limits.splitlines() if "open files" in line]
            assert all(int(n) <= 1024 for n in most[0])
            assert_works(machine)
        assert wait_until(lambda: not is_alive(session))


# Resumes a session that there is not.
UNKNOWN_SESSION = b"TREMOTE\n" + bytes([3, 0, 3, 0, 1, 0, 0, 0]) + b"\1" * 16


def client_hello() -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    outgoing = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="x").do_handshake()
    return outgoing.read()


@contextmanager
def encrypted(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A server with TLS, and its port."""
    command = [str(server_program.find()), "serve", "--listen", "tls://127.0.0.1:0"]
    process = subprocess.Popen(
        [*command, "--token-file", str(folder / "token")],
        stdout=subprocess.PIPE,
        env={**os.environ, "HOME": str(folder)},
    )
    try:
        assert process.stdout is not None
        found = re.search(rb":(\d+)", process.stdout.readline().partition(b"//")[2])
        assert found is not None
        yield process, int(found[1])
    finally:
        process.terminate()
        process.communicate(timeout=DEADLINE)


def refusing(server: int) -> list[int]:
    """Children that refuse a client. (A spare has the listener's name until it is executed.)"""
    return [pid for pid in children_of(server) if name_of(pid) == "refusing"]


# Promise 14.
def test_a_child_that_refuses_inside_tls_is_confined(tmp_path: Path) -> None:
    """It waits for its client, who is silent after its ClientHello."""

    def is_confined(pid: int) -> bool:
        with suppress(OSError, IndexError):
            return states_of_threads(pid)[0]["Seccomp"] == "2"
        return False

    with (
        encrypted(tmp_path) as (process, port),
        socket.create_connection(("127.0.0.1", port)) as client,
    ):
        client.sendall(UNKNOWN_SESSION + client_hello())
        assert wait_until(lambda: any(map(is_confined, refusing(process.pid))))


# Promise 2.
def test_a_refusal_inside_tls_costs_a_process_only_after_a_client_hello(tmp_path: Path) -> None:
    with encrypted(tmp_path) as (process, port), ExitStack() as stack:

        def connect() -> socket.socket:
            return stack.enter_context(socket.create_connection(("127.0.0.1", port)))

        silent = [connect() for _ in range(3)]
        for each in silent:
            each.sendall(UNKNOWN_SESSION)
        end = time.monotonic() + 1
        while time.monotonic() < end:
            assert refusing(process.pid) == []
            time.sleep(0.01)
        for each in silent:
            each.sendall(client_hello())
        assert wait_until(lambda: len(refusing(process.pid)) > 0)
        for _ in range(12):  # one address has at most four
            connect().sendall(UNKNOWN_SESSION + client_hello())
            time.sleep(0.05)
            assert len(refusing(process.pid)) <= 4


# Promise 11.
def test_a_server_that_ends_takes_the_children_that_refuse_along(tmp_path: Path) -> None:
    """Such a client is silent after its ClientHello, and could hold its child for 5 s."""
    with (
        encrypted(tmp_path) as (process, port),
        socket.create_connection(("127.0.0.1", port)) as client,
    ):
        client.sendall(UNKNOWN_SESSION + client_hello())
        assert wait_until(lambda: bool(refusing(process.pid)))
        children = refusing(process.pid)
        process.terminate()
        process.wait(DEADLINE)
        end = time.monotonic() + 4  # by itself it would live five seconds
        while any(map(is_alive, children)):
            assert time.monotonic() < end, "it outlives its server"
            time.sleep(0.01)
