"""A connection through a command: lost with the command, and resumed by running it again."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from helpers import is_alive, wait_until
from training import train

import torch_remote
from torch_remote._machines import Machine, connect_through

KILLS = int(os.environ.get("TORCH_REMOTE_FAULT_MOMENTS", "4")) // 2  # each takes a second or more
SERVE = [sys.executable, "-m", "torch_remote_cli", "serve", "--stdio"]
HOP = [sys.executable, str(Path(__file__).parent / "hop.py")]

Uncut = dict[int, tuple[int, str]]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setenv("TORCH_REMOTE_PATIENCE", "300s")
    with connect_through("hop://here", HOP + SERVE) as made:
        yield made


def hops() -> list[int]:
    """Our processes that play ssh."""
    children = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    pids = [int(pid) for tasks in children for pid in tasks.read_text().split()]
    words = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids if is_alive(pid)}
    return [pid for pid, command in words.items() if b"hop.py" in command]


def test_a_session_whose_command_is_killed_again_and_again_ends_as_an_uncut_one(
    machine: Machine, uncut: Uncut
) -> None:
    session = int(machine.status()["pid"])
    chance = random.Random(5)
    killed = 0

    def kill_now_and_then() -> None:
        nonlocal killed
        while killed < KILLS:
            time.sleep(chance.uniform(0, 0.5))
            if machine.status()["state"] == "open":
                with contextlib.suppress(OSError):  # a process that has just ended
                    for pid in hops():
                        os.kill(pid, signal.SIGKILL)
                killed += 1

    thread = threading.Thread(target=kill_now_and_then, daemon=True)
    thread.start()
    while thread.is_alive():
        assert train(machine.devices[0], 30) == uncut[30]
    thread.join()
    assert killed == KILLS
    assert train(machine.devices[0], 30) == uncut[30]
    assert int(machine.status()["pid"]) == session
    machine.stop()
    assert wait_until(lambda: not is_alive(session))
    assert wait_until(lambda: not hops())


def test_a_session_that_was_killed_is_unknown_to_the_command_that_is_run_again(
    machine: Machine,
) -> None:
    x = torch.ones(2, device=machine.devices[0])
    assert x.tolist() == [1, 1]
    status = machine.status()
    os.kill(int(status["pid"]), signal.SIGKILL)
    with pytest.raises(
        torch_remote.SessionLost, match=f"no longer knows session {status['session']}"
    ):
        x.tolist()


def test_a_session_ends_with_its_lease_when_its_command_does_not_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCH_REMOTE_PATIENCE", "0")
    machine = connect_through("hop://here", [*HOP, *SERVE, "--lease", "200ms"])
    pid = int(machine.status()["pid"])
    for hop in hops():
        os.kill(hop, signal.SIGKILL)
    assert wait_until(lambda: not is_alive(pid))
    machine.stop()


def test_a_command_that_fails_is_a_connection_error() -> None:
    with pytest.raises(torch_remote.ConnectionError, match="nowhere://"):
        connect_through("nowhere://", ["false"])
    with pytest.raises(torch_remote.ConnectionError, match="no-such-command"):
        connect_through("nowhere://", ["no-such-command"])


def test_without_resume_no_session_begins_where_only_clients_that_come_back_are_taken() -> None:
    with pytest.raises(torch_remote.ConnectionError, match="only takes clients back"):
        connect_through("hop://here", [*SERVE, "--resume"])
