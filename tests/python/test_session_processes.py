"""Each session is an executed process that has nothing of the listener's or of other sessions."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
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

pytestmark = pytest.mark.slow

PAGE = "/memfd:torch-remote-session"
MOST_STARTING = 4  # Spares::kMaxStarting


class Server:
    """A server in a process of its own, whose log is in a file."""

    def __init__(self, url: str, process: subprocess.Popen[str], log: Path) -> None:
        self.url, self.process, self._log = url, process, log

    @property
    def pid(self) -> int:
        return self.process.pid

    def log(self) -> str:
        return self._log.read_text()

    def processes(self) -> dict[int, str]:
        """Its children and their names."""
        pids = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return {int(pid): name_of(int(pid)) for pid in pids if is_alive(int(pid))}

    def spares(self) -> list[int]:
        return [pid for pid, name in self.processes().items() if name == "tr-spare"]

    def wait_for_spare(self) -> int:
        """One that is ready."""
        assert wait_until(lambda: bool(self.spares()))
        return self.spares()[0]


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


@contextmanager
def started(folder: Path, *options: str, **environment: str) -> Iterator[Server]:
    log = folder / "log"
    command = [sys.executable, "-m", "torch_remote_cli", "serve", *options]
    if "--listen" not in options:
        command += ["--listen", f"unix://{folder}/s"]
    with log.open("w") as written:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=written,
            text=True,
            close_fds=False,  # a server may be started carelessly
            env={**os.environ, "TORCH_REMOTE_LOG": "info", **environment},
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("listening on "), log.read_text()
        yield Server(line.removeprefix("listening on ").strip(), process, log)
    finally:
        process.terminate()
        process.communicate(timeout=DEADLINE)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with started(tmp_path, "--device", "cpu") as running:
        yield running


def has_ended(pid: int) -> bool:
    return not is_alive(pid)


def pid_of(machine: torch_remote.Machine) -> int:
    return int(machine.status()["pid"])


def assert_works(machine: torch_remote.Machine) -> None:
    assert torch.ones(3, device=machine.devices[0]).sum().item() == 3


def mappings(pid: int) -> list[tuple[int, int, str, str, str]]:
    """Begin, end, permissions, inode and name of each."""
    found = []
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        addresses, permissions, _, _, inode, *name = line.split(maxsplit=5)
        begin, end = (int(part, 16) for part in addresses.split("-"))
        found.append((begin, end, permissions, inode, name[0].strip() if name else ""))
    return found


def place_of(pid: int, name: str) -> int:
    return next(begin for begin, _, _, _, path in mappings(pid) if path.endswith(name))


# Promise 4.
def test_two_sessions_and_the_listener_have_layouts_of_their_own(server: Server) -> None:
    with torch_remote.connect(server.url) as one, torch_remote.connect(server.url) as two:
        pids = [server.pid, pid_of(one), pid_of(two)]
        for name in ("libtorch_cpu.so", "libc.so.6", "[heap]", "[stack]"):
            assert len({place_of(pid, name) for pid in pids}) == 3, name


# Promise 4.
def test_a_session_shares_its_page_with_the_listener_and_nothing_else(server: Server) -> None:
    with torch_remote.connect(server.url) as one, torch_remote.connect(server.url) as two:
        assert_works(one)
        pages = []
        for machine in (one, two):
            shared = [row for row in mappings(pid_of(machine)) if row[2].endswith("s")]
            assert [PAGE in name for *_, name in shared] == [True], shared
            pages.append(shared[0][3])
        assert pages[0] != pages[1]
        ours = [row for row in mappings(server.pid) if row[2].endswith("s")]
        assert {row[2] for row in ours} == {"r--s"}  # the listener writes to no page
        assert set(pages) <= {row[3] for row in ours}


def descriptors(pid: int) -> dict[int, str]:
    folder = Path(f"/proc/{pid}/fd")
    return {int(link.name): str(link.readlink()) for link in folder.iterdir()}


# Promise 4.
def test_a_session_has_no_descriptor_but_its_own(tmp_path: Path) -> None:
    kept = os.open(__file__, os.O_RDONLY)
    os.set_inheritable(kept, True)
    token = tmp_path / "token"
    options = ("--listen", "tcp://127.0.0.1:0", "--token-file", str(token))
    with ExitStack() as stack:
        server = stack.enter_context(started(tmp_path, *options))
        assert __file__ in descriptors(server.pid).values()
        others = [
            stack.enter_context(torch_remote.connect(server.url, token_file=token))
            for _ in range(2)
        ]
        machine = stack.enter_context(torch_remote.connect(server.url, token_file=token))
        assert_works(machine)
        # Those below /proc keep the sandbox's rules alive: what they name may be read anyway.
        all_of_it = descriptors(pid_of(machine))
        mine = {k: name for k, name in all_of_it.items() if not name.startswith("/proc/")}
        assert mine.pop(0) == "/dev/null"
        output = mine.pop(1)  # read by the listener, which has the log alone
        assert output.startswith("pipe:[") and output == mine.pop(2)
        kinds = sorted(re.sub(r":\[\d+\]", "", name) for name in mine.values())
        # The client, the listener, and the process of the client, whose end is watched.
        assert kinds == ["anon_inode:[pidfd]", "socket", "socket"], mine
        for other in others:
            theirs = set(descriptors(pid_of(other)).values())
            assert not theirs & {output, *(n for n in mine.values() if n.startswith("socket"))}
    os.close(kept)


# Promise 4.
def test_a_session_has_a_minimal_environment(tmp_path: Path) -> None:
    secrets = {"CLOUD_SECRET_KEY": "hidden", "TORCH_REMOTE_TOKEN_FILE": "/hidden"}
    with (
        started(tmp_path, **secrets, OMP_NUM_THREADS="1") as server,
        torch_remote.connect(server.url) as machine,
    ):
        text = Path(f"/proc/{pid_of(machine)}/environ").read_text()
    names = {entry.partition("=")[0] for entry in text.split("\0") if entry}
    assert "hidden" not in text
    assert {"OMP_NUM_THREADS", "TORCH_REMOTE_LOG"} <= names
    assert not names & {"PATH", "USER", "PWD", "SSH_AUTH_SOCK", "PYTHONPATH"}


def memory_of(pid: int) -> Iterator[bytes]:
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for begin, end, permissions, _, name in mappings(pid):
            if permissions.startswith("rw") and name != "[vvar]":
                memory.seek(begin)
                yield memory.read(end - begin)


# Promise 4.
def test_the_token_is_not_in_the_memory_of_a_session(tmp_path: Path) -> None:
    path = tmp_path / "token"
    options = ("--listen", "tcp://127.0.0.1:0", "--token-file", str(path))
    with started(tmp_path, *options) as server:
        token = path.read_bytes().strip()
        with torch_remote.connect(server.url, token_file=path) as machine:
            assert_works(machine)
            assert any(token in part for part in memory_of(server.pid))
            assert not any(token in part for part in memory_of(pid_of(machine)))
        spare = server.wait_for_spare()
        assert not any(token in part for part in memory_of(spare))


def seconds_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def read_metrics(path: Path) -> str:
    with socket.socket(socket.AF_UNIX) as reader:
        reader.settimeout(DEADLINE)
        reader.connect(str(path))
        return b"".join(iter(lambda: reader.recv(1 << 16), b"")).decode()


# Promise 4.
def test_a_session_that_writes_anything_on_its_page_harms_nobody(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics"
    with started(tmp_path, "--metrics", f"unix://{metrics}", "--idle-timeout", "10m") as server:
        with torch_remote.connect(server.url) as healthy:
            assert_works(healthy)
            server.wait_for_spare()
            before, used = resident(server.pid), seconds_of(server.pid)
            for pattern in (b"\xff", b"\0", b"\x7f", b"\x80", b"A", b'"', b"\n", os.urandom(4096)):
                with torch_remote.connect(server.url) as machine:
                    assert_works(machine)
                    pid = pid_of(machine)
                    scribble(pid, pattern)
                    assert "torch_remote_sessions 2" in read_metrics(metrics)
                    os.kill(pid, signal.SIGKILL)
                    assert wait_until(partial(has_ended, pid))
                    with pytest.raises(Exception, match="session"):
                        assert_works(machine)
                assert "torch_remote_sessions " in read_metrics(metrics)
                assert_works(healthy)
            assert server.process.poll() is None
            assert resident(server.pid) - before < 16 << 20
            assert seconds_of(server.pid) - used < 5
        with torch_remote.connect(server.url) as machine:
            assert_works(machine)


# Promise 4.
def test_a_session_that_says_it_is_used_in_the_future_does_not_keep_the_server_alive(
    tmp_path: Path,
) -> None:
    with started(tmp_path, "--idle-timeout", "2s") as server:
        with torch_remote.connect(server.url) as machine:
            assert_works(machine)
            pid = pid_of(machine)
            scribble(pid, b"\x7f")
            os.kill(pid, signal.SIGKILL)  # before it writes there again
            with pytest.raises(Exception, match="session"):
                assert_works(machine)
        server.process.wait(DEADLINE)
        assert "nobody has used it for its --idle-timeout" in server.log()


def scribble(pid: int, pattern: bytes) -> None:
    ((begin, end),) = [(row[0], row[1]) for row in mappings(pid) if PAGE in row[4]]
    content = (pattern * (end - begin))[: end - begin]
    with Path(f"/proc/{pid}/mem").open("r+b", buffering=0) as memory:
        memory.seek(begin)
        assert memory.write(content) == len(content)


def test_a_spare_that_is_killed_is_replaced_and_the_next_client_served(server: Server) -> None:
    os.kill(server.wait_for_spare(), signal.SIGKILL)
    told = "the process that was ready for the next session has ended"
    assert wait_until(lambda: f'{told} how="was killed by signal 9' in server.log())
    with torch_remote.connect(server.url) as machine:
        assert_works(machine)


# Promise 4.
def test_a_spare_is_ready_again_before_the_next_client_comes(server: Server) -> None:
    first = server.wait_for_spare()
    with torch_remote.connect(server.url) as machine:
        assert pid_of(machine) == first
        assert server.wait_for_spare() != first


def threads_of(pid: int) -> dict[int, str]:
    """Their names."""
    folder = Path(f"/proc/{pid}/task")
    found = {}
    for thread in folder.iterdir() if folder.exists() else ():
        with suppress(OSError):  # it has ended meanwhile
            found[int(thread.name)] = (thread / "comm").read_text().strip()
    return found


BUSY = """
import torch, torch_remote
x = torch.ones(2000, 2000, device="remote")
(x @ x).sum().item()  # the server's libraries have started their threads
print(torch_remote.machines()[0].status()["pid"], flush=True)
for _ in range(1000):
    x = x @ x
x.sum().item()
"""


# Promise 7c.
def test_a_session_whose_client_is_gone_ends_without_a_new_thread(tmp_path: Path) -> None:
    """It has a call that runs, which has some time to end. The client may have used up the threads
    that the process can have."""
    with started(tmp_path, "--lease", "0s", OMP_NUM_THREADS="1") as server:
        with subprocess.Popen(
            [sys.executable, "-c", BUSY],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TORCH_REMOTE": server.url},
        ) as client:
            assert client.stdout is not None
            pid = int(client.stdout.readline())
            used = seconds_of(pid)
            assert wait_until(lambda: seconds_of(pid) > used + 0.1)  # a call runs
            before = threads_of(pid)
            client.kill()
        seen = before
        while is_alive(pid):
            seen = threads_of(pid) | seen
            time.sleep(0.005)
        assert seen == before
        # Whoever sees it first says so: the reader, or who watches the client's process.
        said = ("session ended during a call", "the client's process has ended")
        assert any(each in server.log() for each in said)


# Promise 4.
def test_a_burst_of_clients_starts_few_processes_at_once(server: Server) -> None:
    server.wait_for_spare()
    most = 0
    done = threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.is_set():
            idle = [name for name in server.processes().values() if name != "tr-session"]
            most = max(most, len(idle))
            time.sleep(0.002)

    def use() -> None:
        with torch_remote.connect(server.url) as machine:
            assert_works(machine)

    watcher = threading.Thread(target=watch)
    watcher.start()
    clients = [threading.Thread(target=use) for _ in range(12)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    done.set()
    watcher.join()
    assert 0 < most <= MOST_STARTING + 2  # the spare that was ready, and one that becomes a session
    assert wait_until(lambda: len(server.processes()) == 1)


def test_clients_are_told_when_no_session_can_be_started(tmp_path: Path) -> None:
    copy = tmp_path / "operators.so"
    copy.write_bytes(library().read_bytes())
    with started(tmp_path, "--library", str(copy)) as server:
        copy.unlink()
        with torch_remote.connect(server.url) as machine:  # the spare has loaded it
            assert_works(machine)
        with pytest.raises(ConnectionError, match=r"cannot load the library .*operators\.so"):
            torch_remote.connect(server.url).devices  # noqa: B018
        assert "cannot start a process for a session" in server.log()
        copy.write_bytes(library().read_bytes())

        def works() -> bool:
            """A process that was started before the file was back still fails."""
            try:
                with torch_remote.connect(server.url) as machine:
                    assert_works(machine)
            except ConnectionError:
                return False
            return True

        assert wait_until(works)


def test_a_client_that_leaves_while_it_waits_costs_no_process(server: Server) -> None:
    spare = server.wait_for_spare()
    os.kill(spare, signal.SIGKILL)
    path = server.url.removeprefix("unix://")
    for _ in range(20):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
            client.sendall(b"TREMOTE\n" + bytes([3, 0, 3, 0]) + bytes(20))
    with torch_remote.connect(server.url) as machine:
        assert_works(machine)
    assert server.log().count("the client left") < 10
