"""SIGKILL and SIGSTOP of either side at random moments. `make faults` does 50 of each."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import latencies
import pytest
from helpers import DEADLINE, is_alive, wait_until
from training import train

import torch_remote

MOMENTS = int(os.environ.get("TORCH_REMOTE_FAULT_MOMENTS", "4"))
# Seconds for what takes less than one on an idle machine. `make faults` prints the times.
SLOWEST = 20.0

Uncut = dict[int, tuple[int, str]]


def later(seconds: float, action: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(seconds, action)
    timer.daemon = True
    timer.start()
    return timer


@pytest.mark.parametrize("where", ["unix", "local"])
@pytest.mark.parametrize("moment", range(MOMENTS))
def test_a_killed_session_is_lost_at_once(
    moment: int,
    where: str,
    server: str,
    uncut: Uncut,  # makes what is made only once in this process
) -> None:
    killed: list[float] = []
    with torch_remote.connect(server if where == "unix" else "local") as machine:
        pid = int(machine.status()["pid"])

        def kill() -> None:
            killed.append(time.monotonic())
            os.kill(pid, signal.SIGKILL)

        later(random.Random(moment).uniform(0, 1), kill)
        with pytest.raises(torch_remote.SessionLost, match=r"killed by signal 9 \(Killed\)"):
            while True:
                train(machine.devices[0], 30)
        seconds = time.monotonic() - killed[0]
    latencies.note(f"{where}: session killed, error raised", seconds)
    assert seconds < SLOWEST


@contextmanager
def stopped_now_and_then(pid: int, chance: random.Random) -> Iterator[None]:
    is_over = threading.Event()

    def stop_and_go() -> None:
        while not is_over.wait(chance.uniform(0, 0.2)):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(chance.uniform(0, 0.1))
            os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=stop_and_go)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@pytest.mark.parametrize("moment", range(MOMENTS))
def test_a_stopped_session_goes_on_when_it_is_continued(
    moment: int, server: str, uncut: Uncut
) -> None:
    with torch_remote.connect(server) as machine:
        pid = int(machine.status()["pid"])
        with stopped_now_and_then(pid, random.Random(moment)):
            assert train(machine.devices[0], 30) == uncut[30]


CLIENTS = """
import json, os, signal, sys
sys.path.insert(0, sys.argv[1])
import torch_remote
from training import train

enough = []
signal.signal(signal.SIGUSR1, lambda *_: enough.append(True))

def work():
    while not enough:
        print(json.dumps(train("remote", 30)), flush=True)
    print("done", flush=True)

for line in sys.stdin:  # each is a process of its own; forked, since importing torch takes seconds
    pid = os.fork()
    if pid == 0:
        work()
        os._exit(0)
    print("pid", pid, flush=True)
    os.waitpid(pid, 0)
"""


class Clients:
    """Processes that train, one after the other."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._said = process.stdin
        self._lines = process.stdout

    def start(self) -> int:
        """The process id of the next one."""
        self._said.write("\n")
        self._said.flush()
        for line in self._lines:
            if line.startswith("pid "):
                return int(line.split()[1])
        raise AssertionError("no client was started")

    def results(self) -> Iterator[tuple[int, str]]:
        for line in self._lines:
            if line == "done\n":
                return
            counter, digest = json.loads(line)
            yield counter, digest


@pytest.fixture
def clients(server: str) -> Iterator[Clients]:
    with subprocess.Popen(
        [sys.executable, "-c", CLIENTS, str(Path(__file__).parent)],
        env={**os.environ, "TORCH_REMOTE": server},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield Clients(process)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(timeout=DEADLINE) == 0


def sessions_of(server_pid: int) -> set[int]:
    """Not the spare, which waits for the next client."""
    children = Path(f"/proc/{server_pid}/task/{server_pid}/children").read_text().split()
    return {int(pid) for pid in children if is_alive(int(pid)) and is_session(int(pid))}


def is_session(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == "tr-session"
    except OSError:
        return False


def test_a_stopped_client_goes_on_when_it_is_continued(clients: Clients, uncut: Uncut) -> None:
    pid = clients.start()
    results = clients.results()
    assert next(results) == uncut[30]
    chance = random.Random(3)
    for _ in range(MOMENTS):
        time.sleep(chance.uniform(0, 0.3))
        os.kill(pid, signal.SIGSTOP)
        time.sleep(chance.uniform(0, 0.1))
        os.kill(pid, signal.SIGCONT)
    os.kill(pid, signal.SIGUSR1)  # enough
    assert set(results) == {uncut[30]}


def test_clients_killed_at_random_moments_leave_no_session(
    clients: Clients, server_pid: int
) -> None:
    before = sessions_of(server_pid)
    chance = random.Random(4)
    for _ in range(MOMENTS):
        pid = clients.start()
        time.sleep(chance.uniform(0, 1.5))  # before it is connected, too
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        assert wait_until(lambda: not sessions_of(server_pid) - before)
        seconds = time.monotonic() - killed
        latencies.note("client killed, session gone", seconds)
        assert seconds < SLOWEST
