"""The ssh provider, through a real sshd on loopback where there is one, and a stand-in for ssh."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from helpers import DEADLINE, is_alive, wait_until
from ssh_server import running_sshd

import torch_remote
from torch_remote.providers import ssh_install

BIN = Path(sys.executable).parent
COMMAND = BIN / "torch-remote"
STAND_IN = Path(__file__).parent / "ssh_stand_in.py"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not COMMAND.exists(), reason="torch-remote is not installed"),
]


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Puts a program `ssh` before the real one. Returns a host that it reaches."""
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {STAND_IN} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("TEST_HOST_PATH", f"{BIN}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    return "ssh://me@box"


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[str]:
    with running_sshd(tmp_path) as url:
        yield url


@pytest.fixture(params=["stand_in", "sshd"])
def host(request: pytest.FixtureRequest) -> str:
    """The URL of a host on which `torch-remote` is not on the PATH, but named by an option."""
    url = str(request.getfixturevalue(request.param))
    return f"{url}{'&' if '?' in url else '?'}command={COMMAND}"


def test_calls_run_on_the_host_and_the_server_ends_with_the_machine(host: str) -> None:
    with torch_remote.connect(host) as machine:
        device = machine.devices[0]
        x = torch.arange(6.0, device=device, requires_grad=True)
        (x * x).sum().backward()
        assert x.grad is not None and x.grad.tolist() == [0, 2, 4, 6, 8, 10]
        status = machine.status()
        assert (status["url"], status["provider"], status["state"]) == (host, "ssh", "open")
        assert "ends its server" in status["ends"]
        pid = int(status["pid"])
        assert is_alive(pid)
    assert wait_until(lambda: not is_alive(pid))
    assert machine.logs().startswith("(")


def ssh_processes() -> list[int]:
    """Our ssh processes."""
    children = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    pids = [int(pid) for tasks in children for pid in tasks.read_text().split()]
    words = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids if is_alive(pid)}
    return [pid for pid, command in words.items() if b"--stdio" in command]


def test_a_session_is_resumed_after_ssh_is_killed(host: str) -> None:
    with torch_remote.connect(host) as machine:
        x = torch.ones(3, device=machine.devices[0])
        pid = machine.status()["pid"]
        for process in ssh_processes():
            os.kill(process, signal.SIGKILL)
        assert (x + 1).tolist() == [2, 2, 2]
        assert machine.status()["pid"] == pid


CONNECT_AND_TELL_PID = """
import sys, torch, torch_remote
machine = torch_remote.connect(sys.argv[1])
torch.ones(1, device=machine.devices[0]).item()
print(machine.status()["pid"], flush=True)
input()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_killing_the_launcher_leaves_no_server_behind(host: str, number: signal.Signals) -> None:
    client = subprocess.Popen(
        [sys.executable, "-c", CONNECT_AND_TELL_PID, f"{host}&lease=2s"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert client.stdout is not None
    pid = int(client.stdout.readline())
    assert is_alive(pid)
    client.send_signal(number)
    client.communicate(timeout=DEADLINE)
    assert wait_until(lambda: not is_alive(pid))


@pytest.mark.parametrize(
    ("name", "said", "advice"),
    [
        ("unknown", "Could not resolve hostname unknown", "check the host's name"),
        ("denied", "Permission denied (publickey", "must work without a password"),
        ("changed", "Host key verification failed", "run `ssh changed` once"),
        ("down", "Connection timed out", "check that the host is up"),
        ("bare", "torch-remote: not found", "ssh://bare?install=1"),
    ],
)
def test_a_failure_is_told_in_sshs_words_with_what_to_do(
    name: str, said: str, advice: str, stand_in: str
) -> None:
    with pytest.raises(torch_remote.ConnectionError) as raised:
        torch_remote.connect(f"ssh://{name}")
    assert said in str(raised.value) and advice in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_port_on_which_nobody_listens_is_told_in_sshs_words() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(
        torch_remote.ConnectionError, match=r"Connection refused.*What to do: check"
    ):
        torch_remote.connect(f"ssh://127.0.0.1:{port}")


@pytest.mark.parametrize("options", ["timeout=1", "timeout=1&install=1"])
def test_a_host_that_says_nothing_is_told_soon(options: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"ssh://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(torch_remote.ConnectionError) as raised:
            torch_remote.connect(f"{url}?{options}")
    assert "timed out" in str(raised.value) and "What to do: check" in str(raised.value)


def test_a_step_of_install_that_hangs_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\nexec sleep 100\n")
    ssh.chmod(0o755)
    with pytest.raises(torch_remote.ConnectionError, match=r"timed out.*more than 1 s.*What to do"):
        ssh_install.install([str(ssh)], "box", "python3", 0)


@pytest.mark.parametrize("python", ["~/bin/my python", "$(touch made)", "`touch made`", "a'b"])
def test_the_hosts_shell_does_not_run_the_name_of_its_python(python: str, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "my python").write_text("#!/bin/sh\necho\n")
    (tmp_path / "bin" / "my python").chmod(0o755)
    done = subprocess.run(
        ["sh", "-c", ssh_install.start_script(python)],
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, cwd=tmp_path, check=False,
    )  # fmt: skip
    shown = python.replace("~", str(tmp_path))
    assert f"torch-remote: {shown} on this host has no torch\n" in done.stderr
    assert ("not found" in done.stderr) == (python[0] != "~")
    assert not (tmp_path / "made").exists()


def fake_command(folder: Path, text: str) -> Path:
    path = folder / "torch-remote"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_a_server_that_does_not_load_is_told_with_what_to_do(stand_in: str, tmp_path: Path) -> None:
    words = "torch-remote-server: error while loading shared libraries: libtorch_cpu.so: cannot"
    command = fake_command(tmp_path, f"echo {shlex.quote(words)} >&2; exit 127")
    with pytest.raises(torch_remote.ConnectionError) as raised:
        torch_remote.connect(f"{stand_in}?command={command}")
    assert words in str(raised.value)
    assert "the minor version of torch that it was built for" in str(raised.value)


def test_install_copies_the_server_once_and_runs_it_with_the_hosts_torch(
    stand_in: str, tmp_path: Path
) -> None:
    url = f"ssh://bare?install=1&timeout=60&python={sys.executable}"
    for _ in range(2):
        with torch_remote.connect(url) as machine:
            assert torch.ones(2, device=machine.devices[0]).sum().item() == 2
            program = Path(f"/proc/{machine.status()['pid']}/exe").resolve()
            assert program.is_relative_to(tmp_path / ".cache" / "torch-remote")
    assert len(list((tmp_path / ".cache" / "torch-remote").iterdir())) == 1


@pytest.mark.parametrize(
    ("version", "words"),
    [(None, "has no torch"), ("1.0.0", "this host has 1.0")],
)
def test_install_on_a_host_with_no_torch_or_another_is_told(
    version: str | None, words: str, stand_in: str, tmp_path: Path
) -> None:
    if version is not None:
        (tmp_path / "torch").mkdir()
        (tmp_path / "torch" / "__init__.py").touch()
        (tmp_path / "torch" / "version.py").write_text(f"__version__ = '{version}'\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec /usr/bin/env python3 -S "$@"\n')
    python.chmod(0o755)
    with pytest.raises(torch_remote.ConnectionError) as raised:
        torch_remote.connect(f"ssh://bare?install=1&timeout=60&python={python}")
    assert words in str(raised.value)
    assert "What to do: name the host's Python that has this torch" in str(raised.value)
    assert "install=1&python=" in str(raised.value)


def test_the_configuration_file_names_the_command(
    stand_in: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "torch-remote").mkdir()
    (tmp_path / "torch-remote" / "config.toml").write_text(
        f'[machines.box]\nurl = "ssh://bare"\ncommand = "{COMMAND}"\n'
    )
    with torch_remote.connect("box") as machine:
        assert torch.ones(2, device=machine.devices[0]).sum().item() == 2


def test_the_example_trains_on_the_host(host: str) -> None:
    example = Path(__file__).resolve().parents[2] / "examples" / "train_on_ssh.py"
    done = subprocess.run(
        [sys.executable, example, host],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert host in done.stdout.splitlines()[0]
    losses = [float(line.split()[-1]) for line in done.stdout.splitlines()[2:]]
    assert losses[-1] < losses[0] / 2
