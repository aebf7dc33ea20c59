"""A lost connection: the user sees a pause, or SessionLost with the first cause."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from helpers import DEADLINE, is_alive, serving, wait_until
from proxy import FaultProxy

import torch_remote


@pytest.fixture
def proxy(server: str) -> Iterator[FaultProxy]:
    with FaultProxy(server, lambda number: None) as made:
        yield made


def lose(proxy: FaultProxy) -> None:
    """Cuts the connection and accepts no other."""
    proxy.closed.set()
    proxy.hang_up()


def test_one_line_tells_that_the_connection_was_resumed_and_how_long_it_took(
    proxy: FaultProxy, capfd: pytest.CaptureFixture[str]
) -> None:
    with torch_remote.connect(proxy.url) as machine:
        x = torch.zeros(3, device=machine.devices[0])
        x.add_(1)
        torch_remote.synchronize()
        capfd.readouterr()
        proxy.hang_up()
        x.add_(1)
        assert x.tolist() == [2, 2, 2]
        session = machine.status()["session"]
        lines = [line for line in capfd.readouterr().err.splitlines() if session in line]
    assert len(lines) == 1
    assert "connection resumed" in lines[0]
    assert "after_ms=" in lines[0]


def test_a_wait_can_be_interrupted_while_resuming_and_the_session_stays_usable(
    proxy: FaultProxy,
) -> None:
    with torch_remote.connect(proxy.url) as machine:
        x = torch.zeros((), device=machine.devices[0])
        x.add_(1)
        assert x.item() == 1
        lose(proxy)
        assert wait_until(lambda: machine.status()["state"] == "resuming")
        x.add_(1)
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        begin = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            x.item()
        assert time.monotonic() - begin < 30  # not TORCH_REMOTE_PATIENCE
        x.add_(1)
        proxy.closed.clear()
        assert x.item() == 3


def test_a_client_far_ahead_waits_while_resuming_instead_of_growing(proxy: FaultProxy) -> None:
    with torch_remote.connect(proxy.url) as machine:
        x = torch.zeros((), dtype=torch.long, device=machine.devices[0])
        x.add_(1)
        assert x.item() == 1
        lose(proxy)
        done = 0
        ahead = threading.Event()

        def run() -> None:
            nonlocal done
            for _ in range(70_000):  # the window is 65,536 calls at most
                x.add_(1)
                done += 1
            ahead.set()

        thread = threading.Thread(target=run)
        thread.start()
        last, still = -1, 0
        while still < 6:  # a thread that is only short of processor time goes on
            still = still + 1 if done == last else 0
            last = done
            time.sleep(0.5)
        assert not ahead.is_set()
        assert done < 66_000
        proxy.closed.clear()
        thread.join()
        assert x.item() == 70_001


def test_patience_gone_is_session_lost_with_the_first_cause_and_others_go_on(
    server: str, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_REMOTE_PATIENCE", "300ms")
    with torch_remote.connect(server) as other, torch_remote.connect(proxy.url) as machine:
        x = torch.ones(2, device=machine.devices[0])
        y = torch.ones(2, device=other.devices[0])
        assert x.tolist() == [1, 1]
        lose(proxy)
        texts = set()
        for _ in range(2):
            with pytest.raises(torch_remote.SessionLost) as lost:
                x.add(1).tolist()
            texts.add(str(lost.value))
        (text,) = texts
        assert "closed the connection" in text or "reset" in text
        assert "could not be resumed within TORCH_REMOTE_PATIENCE" in text
        assert y.add(1).tolist() == [2, 2]
        machine.stop()
        proxy.closed.clear()
        with torch_remote.connect(proxy.url) as again:
            assert torch.ones(1, device=again.devices[0]).item() == 1


def test_without_patience_a_lost_connection_is_a_lost_session(
    proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_REMOTE_PATIENCE", "0")
    with torch_remote.connect(proxy.url) as machine:
        x = torch.ones(2, device=machine.devices[0])
        assert x.tolist() == [1, 1]
        proxy.hang_up()
        with pytest.raises(torch_remote.SessionLost):
            x.tolist()
        assert proxy.accepted == 1


def test_a_session_ends_with_its_lease_and_the_server_says_so(tmp_path: Path) -> None:
    with (
        serving(f"unix://{tmp_path}/s", "--lease", "200ms") as url,
        FaultProxy(url, lambda number: None) as proxy,
        torch_remote.connect(proxy.url) as machine,
    ):
        x = torch.ones(2, device=machine.devices[0])
        assert x.tolist() == [1, 1]
        status = machine.status()
        lose(proxy)
        assert wait_until(lambda: not is_alive(int(status["pid"])))
        proxy.closed.clear()
        with pytest.raises(
            torch_remote.SessionLost,
            match=f"could not be resumed: session {status['session']} has ended: .*"
            "did not come back within the lease of 200 ms",
        ):
            x.tolist()


def test_a_server_that_is_stopped_says_so(tmp_path: Path) -> None:
    with serving(f"unix://{tmp_path}/s") as url:
        machine = torch_remote.connect(url)
        x = torch.ones(2, device=machine.devices[0])
        assert x.tolist() == [1, 1]
    with pytest.raises(torch_remote.SessionLost, match="the server was stopped"):
        for _ in range(1000):
            x.tolist()
            time.sleep(0.01)
    machine.stop()


LEAVING = """
import sys, torch, torch_remote
x = torch.ones(2, device="remote")
x.tolist()
print("begun", flush=True)
if sys.stdin.readline() == "call\\n":
    x.add_(1)
"""


def leave(proxy: FaultProxy, line: str, patience: str) -> tuple[int, str]:
    """Exit status and stderr of a program that ends while its server cannot be reached."""
    client = subprocess.Popen(
        [sys.executable, "-c", LEAVING],
        env={**os.environ, "TORCH_REMOTE": proxy.url, "TORCH_REMOTE_PATIENCE": patience},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert client.stdout is not None
    assert client.stdout.readline() == "begun\n"
    lose(proxy)
    stderr = client.communicate(f"{line}\n", timeout=DEADLINE)[1]
    return client.returncode, stderr


def test_a_program_that_ends_with_all_calls_done_does_not_wait_to_be_resumed(
    proxy: FaultProxy,
) -> None:
    assert leave(proxy, "nothing", "600s")[0] == 0


def test_a_program_that_ends_while_it_is_being_resumed_waits_for_its_calls_in_patience(
    proxy: FaultProxy,
) -> None:
    status, stderr = leave(proxy, "call", "3s")
    assert status == 1
    assert "torch_remote: waiting for 1 call to finish (Ctrl-C ends the wait)\n" in stderr
    assert "torch_remote: 1 call was not confirmed: " in stderr.splitlines()[-1]


KILLED = """
import os, time, torch, torch_remote
torch.ones(2, device="remote").tolist()
worker = os.fork()  # which keeps what the parent had open
if worker == 0:
    time.sleep(600)
    os._exit(0)
print(worker, torch_remote.machines()[0].status()["pid"], flush=True)
os.kill(os.getpid(), 9)
"""


# Promise 11.
@pytest.mark.parametrize("transport", ["unix", "tcp", "local"])
def test_the_session_of_a_killed_client_is_gone_although_its_worker_lives(
    transport: str, server: str, proxy: FaultProxy
) -> None:
    url = {"unix": server, "tcp": proxy.url, "local": "local"}[transport]
    client = subprocess.Popen(
        [sys.executable, "-c", KILLED],
        env={**os.environ, "TORCH_REMOTE": url},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert client.stdout is not None
    worker, session = map(int, client.stdout.readline().split())
    try:
        assert client.wait(timeout=DEADLINE) == -signal.SIGKILL
        begin = time.monotonic()
        assert wait_until(lambda: not is_alive(session))
        assert time.monotonic() - begin < 20  # one second, if the processors are free
        assert is_alive(worker)
    finally:
        os.kill(worker, signal.SIGKILL)
        client.stdout.close()


def test_a_connection_is_resumed_with_the_token_that_was_given_to_connect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_REMOTE_TOKEN", "the-token-of-another-machine")
    with (
        serving(f"unix://{tmp_path}/s", "--token-file", f"{tmp_path}/token") as url,
        FaultProxy(url, lambda number: None) as proxy,
        torch_remote.connect(proxy.url, token_file=tmp_path / "token") as machine,
    ):
        x = torch.zeros(3, device=machine.devices[0])
        x.add_(1)
        assert x.tolist() == [1, 1, 1]
        proxy.hang_up()
        x.add_(1)
        assert x.tolist() == [2, 2, 2]
        assert repr(machine).endswith("state='open')")


def test_a_connection_cut_while_a_thread_is_stopped_is_resumed_stopped(proxy: FaultProxy) -> None:
    with torch_remote.connect(proxy.url) as machine:
        device = machine.devices[0]
        x = torch.zeros(2, device=device)
        x.tolist()
        failed = torch.gather(
            torch.ones(777, device=device), 0, torch.tensor([10**6], device=device)
        )
        proxy.hang_up()
        with pytest.raises(torch_remote.RemoteError, match="aten::gather"):
            x.add_(1)
            failed.tolist()
        assert x.tolist() == [0, 0]
        x.add_(1)
        assert x.tolist() == [1, 1]
