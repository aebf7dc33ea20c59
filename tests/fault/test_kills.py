"""SIGKILL and SIGSTOP of either side, at random moments."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import DEADLINE, is_alive, wait_until
from training import train

import torch_remote

MOMENTS = int(os.environ.get("TORCH_REMOTE_FAULT_MOMENTS", "4"))

Uncut = dict[int, tuple[int, str]]


def later(seconds: float, action: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(seconds, action)
    timer.daemon = True
    timer.start()
    return timer


@pytest.mark.parametrize("moment", range(MOMENTS))
def test_a_killed_session_is_lost_at_once(moment: int, server: str) -> None:
    killed: list[float] = []
    with torch_remote.connect(server) as machine:
        pid = int(machine.status()["pid"])

        def kill() -> None:
            killed.append(time.monotonic())
            os.kill(pid, signal.SIGKILL)

        later(random.Random(moment).uniform(0, 1), kill)
        with pytest.raises(torch_remote.SessionLost, match=r"killed by signal 9 \(Killed\)"):
            while True:
                train(machine.devices[0], 30)
        assert time.monotonic() - killed[0] < 20  # one second, where the processors have time


@pytest.mark.parametrize("moment", range(MOMENTS))
def test_a_stopped_session_goes_on_when_it_is_continued(
    moment: int, server: str, uncut: Uncut
) -> None:
    chance = random.Random(moment)
    with torch_remote.connect(server) as machine:
        pid = int(machine.status()["pid"])
        is_over = threading.Event()

        def stop_and_go() -> None:
            while not is_over.wait(chance.uniform(0, 0.2)):
                os.kill(pid, signal.SIGSTOP)
                time.sleep(chance.uniform(0, 0.1))
                os.kill(pid, signal.SIGCONT)

        thread = threading.Thread(target=stop_and_go)
        thread.start()
        try:
            assert train(machine.devices[0], 30) == uncut[30]
        finally:
            is_over.set()
            thread.join()


def start_client(server: str, steps: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(Path(__file__).parent / "training.py")],
        env={**os.environ, "TORCH_REMOTE": server, "STEPS": str(steps)},
        stdout=subprocess.PIPE,
        text=True,
    )


def sessions_of(server_pid: int) -> set[int]:
    children = Path(f"/proc/{server_pid}/task/{server_pid}/children").read_text().split()
    return {int(pid) for pid in children}


def test_a_stopped_client_goes_on_when_it_is_continued(
    server: str, server_pid: int, uncut: Uncut
) -> None:
    before = sessions_of(server_pid)
    client = start_client(server, 100)
    assert wait_until(lambda: sessions_of(server_pid) - before != set())
    chance = random.Random(3)
    while client.poll() is None:
        time.sleep(chance.uniform(0, 0.3))
        client.send_signal(signal.SIGSTOP)
        time.sleep(chance.uniform(0, 0.1))
        client.send_signal(signal.SIGCONT)
    assert client.stdout is not None
    result = json.loads(client.stdout.read())
    assert (result["counter"], result["digest"]) == uncut[100]


def test_clients_killed_at_random_moments_leave_no_session(server: str, server_pid: int) -> None:
    before = sessions_of(server_pid)
    chance = random.Random(4)
    for _ in range(max(1, MOMENTS // 4)):
        client = start_client(server, 10_000)
        assert wait_until(lambda: sessions_of(server_pid) - before != set())
        time.sleep(chance.uniform(0, 1))
        client.kill()
        client.communicate(timeout=DEADLINE)
        assert wait_until(
            lambda: not any(is_alive(pid) for pid in sessions_of(server_pid) - before)
        )
