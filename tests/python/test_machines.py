"""Connecting machines: sockets, tokens, garbage on the port, and servers that end with us."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import DEADLINE, assert_runs, assert_same, is_alive, run_python, serving, wait_until

import torch_remote

pytestmark = pytest.mark.slow


@pytest.fixture
def token_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A token file that does not exist yet: the server writes it, the client reads it."""
    path = tmp_path / "token"
    monkeypatch.delenv("TORCH_REMOTE_TOKEN", raising=False)
    monkeypatch.setenv("TORCH_REMOTE_TOKEN_FILE", str(path))
    return path


def assert_serves(url: str) -> None:
    with torch_remote.connect(url) as machine:
        x = torch.arange(4, device=machine.devices[0])
        assert (x + 1).tolist() == [1, 2, 3, 4]


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def test_a_unix_socket_serves_one_client_after_the_other(tmp_path: Path) -> None:
    with serving(f"unix://{tmp_path}/s") as url:
        assert url == f"unix://{tmp_path}/s"
        assert_serves(url)
        assert_serves(url)


def test_tcp_with_a_token_serves_and_the_token_file_is_private(token_file: Path) -> None:
    with serving("tcp://127.0.0.1:0", "--token-file", str(token_file)) as url:
        assert port_of(url) != 0
        assert token_file.stat().st_mode & 0o777 == 0o600
        assert_serves(url)


def test_the_token_may_come_in_the_environment(
    token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving("tcp://127.0.0.1:0", "--token-file", str(token_file)) as url:
        monkeypatch.delenv("TORCH_REMOTE_TOKEN_FILE")
        monkeypatch.setenv("TORCH_REMOTE_TOKEN", token_file.read_text().strip())
        assert_serves(url)


# Promise 3.
def test_a_wrong_token_is_refused_by_name_and_the_next_client_served(
    token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving("tcp://127.0.0.1:0", "--token-file", str(token_file)) as url:
        with monkeypatch.context() as wrong:
            wrong.delenv("TORCH_REMOTE_TOKEN_FILE")
            wrong.setenv("TORCH_REMOTE_TOKEN", "not-the-token-not-the-token-not-the")
            with pytest.raises(torch_remote.ConnectionError, match="token"):
                assert_serves(url)
        assert_serves(url)


# Promise 1.
def test_tcp_without_a_token_file_refuses_to_start() -> None:
    command = [sys.executable, "-m", "torch_remote_cli", "serve", "--listen", "tcp://127.0.0.1:0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode != 0
    assert "--token-file" in done.stderr


@pytest.mark.parametrize(
    "rubbish",
    [b"", b"\n", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 4096, b"\x00" * 100_000],
    ids=["nothing", "newline", "http", "ones", "zeros"],
)
def test_after_rubbish_on_the_port_the_next_client_is_served(
    rubbish: bytes, token_file: Path
) -> None:
    with serving("tcp://127.0.0.1:0", "--token-file", str(token_file)) as url:
        with socket.create_connection(("127.0.0.1", port_of(url)), DEADLINE) as connection:
            try:
                connection.sendall(rubbish)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(4096):
                    pass
            except OSError:
                pass  # the server may close before it has read everything
        assert_serves(url)


def test_nobody_listening_is_a_connection_error(tmp_path: Path) -> None:
    with pytest.raises(torch_remote.ConnectionError, match="nobody"):
        torch_remote.connect(f"unix://{tmp_path}/nobody").devices  # noqa: B018


@pytest.mark.parametrize("url", ["", "remote", "ftp://host", "tcp://", "unix://"])
def test_a_url_that_means_nothing_is_an_error_that_names_it(url: str) -> None:
    with pytest.raises((ValueError, RuntimeError)) as raised:
        torch_remote.connect(url).devices  # noqa: B018
    assert url in str(raised.value)


def test_machines_lists_what_is_connected() -> None:
    with torch_remote.connect("local") as machine:
        assert machine in torch_remote.machines()
        status = machine.status()
        assert int(status["pid"]) != os.getpid()
        assert status["url"] == "local"
        assert str(status["torch_version"]).split(".")[:2] == torch.__version__.split(".")[:2]
    assert machine not in torch_remote.machines()


def test_two_machines_have_devices_of_their_own() -> None:
    with torch_remote.connect("local") as one, torch_remote.connect("local") as two:
        assert set(one.devices).isdisjoint(two.devices)
        x = torch.arange(3, device=one.devices[0])
        y = x.to(two.devices[0])
        assert y.device == two.devices[0]
        assert (y + 1).tolist() == [1, 2, 3]


def test_tensors_of_a_stopped_machine_raise_session_lost() -> None:
    machine = torch_remote.connect("local")
    x = torch.ones(3, device=machine.devices[0])
    machine.stop()
    with pytest.raises(torch_remote.SessionLost, match=r"torch_remote\.connect\(\.\.\.\)"):
        x.tolist()


def test_other_machines_keep_their_indices_when_one_stops() -> None:
    stopped = torch_remote.connect("local")
    with torch_remote.connect("local") as other:
        first, last = stopped.devices[0], other.devices[-1]
        x = torch.ones(2, device=last)
        stopped.stop()
        assert "has ended" in stopped.status()["ends"]
        assert torch.remote.device_count() > last.index
        with pytest.raises(RuntimeError, match=f"{first} was stopped; there (is|are) .*{last}"):
            torch.ones(2, device=first)
        assert x.sum().item() == 2


def test_the_state_of_a_machine_tells_a_stopped_one_from_a_lost_one() -> None:
    stopped, lost = torch_remote.connect("local"), torch_remote.connect("local")
    assert [machine.status()["state"] for machine in (stopped, lost)] == ["open", "open"]
    stopped.stop()
    os.kill(int(lost.status()["pid"]), signal.SIGKILL)
    assert stopped.status()["state"] == "stopped"
    assert wait_until(lambda: lost.status()["state"] == "lost")
    lost.stop()
    assert lost.status()["state"] == "lost"


def test_a_machine_connected_after_the_first_backward_can_do_backward() -> None:
    torch.ones(2, device="remote", requires_grad=True).sum().backward()
    with torch_remote.connect("local") as machine:
        x = torch.ones(2, device=machine.devices[0], requires_grad=True)
        (x * 3).sum().backward()
        assert x.grad is not None and x.grad.tolist() == [3, 3]


def test_a_failure_names_the_device_of_its_call(tmp_path: Path) -> None:
    with (
        serving(f"unix://{tmp_path}/s", "--device", "cpu", "--devices", "2") as url,
        torch_remote.connect(url) as machine,
    ):
        for device in machine.devices:
            x = torch.zeros(3, device=device)
            failed = x[torch.tensor([9], device=device)]
            with pytest.raises(torch_remote.RemoteError, match=f" on {device} "):
                torch_remote.synchronize()
            with pytest.raises(IndexError, match=f" on {device} "):
                failed.tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_copy_between_devices_of_a_server_neither_waits_nor_passes_through_the_client(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    with (
        serving(f"unix://{tmp_path}/s", "--device", "cpu", "--devices", "2") as url,
        torch_remote.connect(url) as machine,
    ):
        first, second = machine.devices
        x = torch.arange(100_000.0, device=first)
        with torch_remote.count() as counted:
            y = x.t().to(second, dtype)
            y.add_(1)
        assert (counted.syncs, y.device.index) == (0, torch.device(second).index)
        assert counted.bytes_sent < 10_000
        assert_same(y.cpu(), (torch.arange(100_000.0).to(dtype) + 1))
        with pytest.raises(RuntimeError, match="same device"):
            x + y
        into = torch.zeros(3, device=first)
        into.copy_(y[:3])
        assert into.tolist() == [1, 2, 3]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_session_outlives_its_killed_listener_while_its_client_is_there(tmp_path: Path) -> None:
    with serving(f"unix://{tmp_path}/s") as url, torch_remote.connect(url) as machine:
        x = torch.ones(3, device=machine.devices[0])
        session = int(machine.status()["pid"])
        listener = parent_of(session)
        os.kill(listener, signal.SIGKILL)
        assert wait_until(lambda: parent_of(session) != listener)
        assert (x + 1).tolist() == [2, 2, 2]
        machine.stop()
        assert wait_until(lambda: not is_alive(session))


def test_connect_before_first_use_makes_device_zero(tmp_path: Path) -> None:
    with serving(f"unix://{tmp_path}/s") as url:
        said = assert_runs(f"""
            import torch, torch_remote
            machine = torch_remote.connect({url!r})
            print(machine.devices[0], torch.ones(2, device="remote").sum().item())
            print(len(torch_remote.machines()))
        """)
    assert said.splitlines() == ["remote:0 2.0", "1"]


def test_the_environment_names_the_default_machine(tmp_path: Path) -> None:
    with serving(f"unix://{tmp_path}/s") as url:
        said = assert_runs(
            """
            import torch, torch_remote
            print(torch.ones(2, device="remote").sum().item())
            print(torch_remote.machines()[0].status()["url"])
            """,
            TORCH_REMOTE=url,
        )
    assert said.splitlines() == ["2.0", url]


USE_AND_TELL_PID = """
import torch, torch_remote
torch.ones(1, device="remote").item()
print(torch_remote.machines()[0].status()["pid"], flush=True)
"""


def test_the_embedded_server_is_gone_after_exit() -> None:
    pid = int(assert_runs(USE_AND_TELL_PID))
    assert wait_until(lambda: not is_alive(pid))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_embedded_server_is_gone_after_a_signal(number: signal.Signals) -> None:
    client = subprocess.Popen(
        [sys.executable, "-c", USE_AND_TELL_PID + "input()"],
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


def test_ctrl_c_does_not_hit_the_embedded_server() -> None:
    said = assert_runs("""
        import os, signal, torch, torch_remote
        x = torch.ones(2, device="remote")
        x.tolist()
        try:
            os.kill(0, signal.SIGINT)  # as a terminal does it: to the whole group
        except KeyboardInterrupt:
            pass
        print(x.sum().item())
    """)
    assert said == "2.0"


def test_a_unix_socket_with_a_token_serves_who_knows_it(tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    with serving(f"unix://{tmp_path}/s", "--token-file", str(token_file)) as url:
        code = (
            "import torch; import torch_remote; print(torch.ones(2, device='remote').sum().item())"
        )
        environment = {"TORCH_REMOTE": url, "TORCH_REMOTE_TOKEN_FILE": str(token_file)}
        assert assert_runs(code, **environment) == "2.0"
        done = run_python(code, TORCH_REMOTE=url)
        assert "the server wants a token" in done.stderr
