"""What a server reports to whoever runs it, also about a session that was killed."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from helpers import DEADLINE, assert_runs, run_python, serving, wait_until

import torch_remote

pytestmark = pytest.mark.slow


def read_metrics(path: Path) -> dict[str, float]:
    with socket.socket(socket.AF_UNIX) as reader:
        reader.connect(str(path))
        text = b"".join(iter(lambda: reader.recv(1 << 16), b"")).decode()
    rows = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in rows}


# Promise 12.
def test_metrics_tell_sessions_calls_bytes_memory_and_errors(tmp_path: Path) -> None:
    door = tmp_path / "metrics"
    with serving(f"unix://{tmp_path}/s", "--metrics", f"unix://{door}") as url:
        assert read_metrics(door)["torch_remote_sessions"] == 0
        with torch_remote.connect(url) as machine:
            label = f'{{session="{machine.status()["session"]}"}}'
            x = torch.ones(1000, device=machine.devices[0])
            x.add_(1)
            with pytest.raises(RuntimeError):
                torch.zeros(3, device=machine.devices[0])[
                    torch.tensor([9], device=machine.devices[0])
                ].tolist()
            x.sum().item()
            # The frame that was answered is counted a moment later.
            assert wait_until(lambda: read_metrics(door)[f"torch_remote_calls_total{label}"] >= 5)
            figures = read_metrics(door)
            assert figures["torch_remote_sessions"] == 1
            assert figures[f"torch_remote_errors_total{label}"] == 1
            assert figures[f"torch_remote_memory_bytes{label}"] >= 4000
            assert figures[f"torch_remote_storages{label}"] >= 1
            assert figures[f"torch_remote_received_bytes_total{label}"] > 0
            assert figures[f"torch_remote_sent_bytes_total{label}"] > 0
            assert figures[f"torch_remote_queued_bytes{label}"] == 0
            assert figures[f"torch_remote_answers_total{label}"] >= 2
            assert figures[f"torch_remote_device_memory_bytes{label}"] > 0
            assert figures[f"torch_remote_session_start_time_seconds{label}"] <= time.time()
            assert figures['torch_remote_operator_calls_total{operator="aten::sum"}'] >= 1
            assert figures['torch_remote_operator_seconds_total{operator="aten::sum"}'] > 0
        assert wait_until(lambda: read_metrics(door)["torch_remote_sessions"] == 0)
        assert read_metrics(door)["torch_remote_sessions_total"] == 1
    assert not door.exists()


def test_the_lines_that_waited_are_told_with_how_often_and_how_long() -> None:
    x = torch.ones(3, device="remote")

    def counts() -> dict[str, tuple[int, float]]:
        return {one.line: (one.count, one.seconds) for one in torch_remote.waits_by_line()}

    before = counts()
    torch_remote.synchronize()
    for _ in range(5):
        x.sum().item()
    after = counts()
    (line,) = [one for one in after if after[one][0] - before.get(one, (0, 0))[0] == 5]
    assert re.search(r"test_observability\.py:\d+$", line)
    assert after[line][1] > before.get(line, (0, 0.0))[1]
    times = [one.seconds for one in torch_remote.waits_by_line()]
    assert times == sorted(times, reverse=True)


# Promise 12.
def test_a_server_goes_on_although_nobody_reads_its_log(tmp_path: Path) -> None:
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    with pytest.raises(BlockingIOError):
        while os.write(theirs, bytes(1 << 16)):
            pass
    os.set_blocking(theirs, True)
    server = subprocess.Popen(
        [sys.executable, "-m", "torch_remote_cli", "serve", "--listen", f"unix://{tmp_path}/s"],
        env={**os.environ, "TORCH_REMOTE_LOG": "debug"},
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
    )
    try:
        assert server.stdout is not None
        assert server.stdout.readline().startswith("listening on ")
        for _ in range(3):
            with torch_remote.connect(f"unix://{tmp_path}/s") as machine:
                assert torch.ones(2, device=machine.devices[0]).tolist() == [1, 1]
        os.set_blocking(ours, False)
        said = bytearray()

        def is_told() -> bool:
            with contextlib.suppress(BlockingIOError):
                while True:
                    said.extend(os.read(ours, 1 << 16))
            return re.search(rb"\d lines were lost", said) is not None

        is_told()  # makes room
        with torch_remote.connect(f"unix://{tmp_path}/s"):  # makes it log something
            assert wait_until(is_told)
    finally:
        server.terminate()
        server.communicate()
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize("listen", ["unix://{}/s", "tcp://127.0.0.1:0"])
def test_the_servers_log_tells_who_the_client_is(
    listen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_REMOTE_TOKEN_FILE", str(tmp_path / "token"))
    command = [sys.executable, "-m", "torch_remote_cli", "serve", "--listen"]
    server = subprocess.Popen(
        [*command, listen.format(tmp_path), "--token-file", str(tmp_path / "token")],
        env={**os.environ, "TORCH_REMOTE_LOG": "info"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    url = server.stdout.readline().removeprefix("listening on ").strip()
    torch_remote.connect(url).stop()
    server.terminate()
    said = server.communicate(timeout=DEADLINE)[1]
    (begun,) = [line for line in said.splitlines() if "session begins" in line]
    if listen.startswith("unix"):
        assert f"pid {os.getpid()}, uid {os.geteuid()}" in begun
    else:
        assert re.search(r"peer=\W*127\.0\.0\.1:\d+", begun), begun
        assert url.removeprefix("tcp://") not in begun


# Promise 1.
def test_metrics_are_told_on_a_unix_socket_only(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch_remote_cli", "serve", "--listen"]
    refused = subprocess.run(
        [*command, f"unix://{tmp_path}/s", "--metrics", "tcp://127.0.0.1:0"],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert refused.returncode != 0
    assert "Unix socket" in refused.stderr


# Promise 12.
def test_the_error_of_a_killed_session_quotes_its_last_calls(tmp_path: Path) -> None:
    with (
        serving(f"unix://{tmp_path}/s", "--metrics", f"unix://{tmp_path}/m") as url,
        torch_remote.connect(url) as machine,
    ):
        x = torch.ones(3, device=machine.devices[0])
        (x * 2).tolist()
        os.kill(int(machine.status()["pid"]), signal.SIGKILL)
        with pytest.raises(torch_remote.SessionLost) as lost:
            x.tolist()
        text = str(lost.value)
        assert "killed by signal 9 (Killed)" in text
        assert re.search(r"call \d+ aten::mul", text), text
        assert machine.status()["session"] in text
        assert read_metrics(tmp_path / "m")["torch_remote_sessions_killed_total"] == 1


def test_the_error_of_a_killed_embedded_server_quotes_its_last_calls() -> None:
    said = assert_runs("""
        import os, signal, torch, torch_remote
        x = torch.ones(3, device="remote")
        (x * 2).tolist()
        os.kill(int(torch_remote.machines()[0].status()["pid"]), signal.SIGSEGV)
        try:
            x.tolist()
        except torch_remote.SessionLost as error:
            print(error)
    """)
    assert "killed by signal 11 (Segmentation fault)" in said
    assert "aten::mul" in said


def test_a_machine_shows_its_url_devices_and_state(tmp_path: Path) -> None:
    with serving(f"unix://{tmp_path}/s", "--devices", "2") as url:
        machine = torch_remote.connect(url)
        devices = ", ".join(map(str, machine.devices))
        text = f"Machine(id={machine.id}, url='{url}', devices=[{devices}], state="
        assert repr(machine) == text + "'open')"
        machine.stop()
        assert repr(machine) == text + "'stopped')"


def test_showing_a_machine_does_not_wait_for_its_server(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(f"{tmp_path}/s")
        silent.listen()
        said = run_python(
            """
            import os, torch, torch_remote
            torch.remote.init()
            print(torch_remote.machines(), flush=True)
            os._exit(0)
            """,
            TORCH_REMOTE=f"unix://{tmp_path}/s",
        ).stdout
    shown = f"Machine(id=0, url='unix://{tmp_path}/s', devices=[remote:0], state='connecting')"
    assert said.strip() == f"[{shown}]"
