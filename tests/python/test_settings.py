"""Invalid settings are refused once, at the start, with the setting's name and the reason."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import DEADLINE, serving

import torch_remote

pytestmark = pytest.mark.slow


def start_in_vain(*options: str, listen: str, status: int = 1) -> str:
    """Starts a server that refuses to start. Returns its text."""
    command = [sys.executable, "-m", "torch_remote_cli", "serve", "--listen", listen, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert (done.returncode, done.stdout) == (status, ""), done.stdout + done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("device", "status", "words"),
    [
        ("tpu", 2, "use auto, cpu, cuda or cuda:n"),
        ("cuda:", 2, "use auto, cpu, cuda or cuda:n"),
        ("cuda:1x", 2, "use auto, cpu, cuda or cuda:n"),
        ("cuda:999", 1, "this machine has"),
    ],
)
def test_a_device_that_there_is_not_keeps_a_server_from_starting(
    device: str, status: int, words: str, tmp_path: Path
) -> None:
    said = start_in_vain("--device", device, listen=f"unix://{tmp_path}/s", status=status)
    assert f"--device {device}: {words}" in said


def test_wrong_usage_has_a_status_of_its_own_and_makes_no_file(tmp_path: Path) -> None:
    token = tmp_path / "token"
    for options, listen, words in (
        (["--lease", "10x"], f"unix://{tmp_path}/s", "--lease"),
        (["--max-memory", "much"], f"unix://{tmp_path}/s", "--max-memory"),
        ([], "tcp://127.0.0.1:0", "without a token"),
        (["--token-file", str(token)], "tcp://0.0.0.0:0", "only loopback"),
        ([], "ftp://host", "ftp://host"),
    ):
        assert words in start_in_vain(*options, listen=listen, status=2)
    assert not token.exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_cuda_on_a_machine_without_keeps_a_server_from_starting(tmp_path: Path) -> None:
    said = start_in_vain("--device", "cuda", listen=f"unix://{tmp_path}/s")
    assert "--device cuda: this machine has no CUDA device" in said


def test_a_log_of_calls_that_cannot_be_written_keeps_a_server_from_starting(
    tmp_path: Path,
) -> None:
    said = start_in_vain("--log-calls", f"{tmp_path}/no/calls", listen=f"unix://{tmp_path}/s")
    assert f"--log-calls: making {tmp_path}/no/calls" in said
    assert "No such file or directory" in said
    with serving(f"unix://{tmp_path}/s", "--log-calls", f"{tmp_path}/calls"):
        assert list(tmp_path.glob("calls*")) == []


def test_a_servers_token_file_that_cannot_be_made_is_named_with_the_reason(tmp_path: Path) -> None:
    said = start_in_vain("--token-file", f"{tmp_path}/no/token", listen=f"unix://{tmp_path}/s")
    assert f"--token-file: making the token file {tmp_path}/no/token: No such file" in said


@pytest.mark.parametrize("reason", ["No such file or directory", "Is a directory", "no token in"])
def test_a_clients_token_file_that_cannot_be_read_is_named_with_the_reason(
    reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "token"
    if reason == "Is a directory":
        path.mkdir()
    elif reason == "no token in":
        path.write_text(" \n")
    monkeypatch.setenv("TORCH_REMOTE_TOKEN_FILE", str(path))
    with serving(f"unix://{tmp_path}/s") as url:
        with pytest.raises(torch_remote.ConnectionError) as raised:
            torch_remote.connect(url)
        assert "TORCH_REMOTE_TOKEN_FILE: " in str(raised.value)
        assert str(path) in str(raised.value)
        assert reason in str(raised.value)
        monkeypatch.delenv("TORCH_REMOTE_TOKEN_FILE")
        torch_remote.connect(url).stop()


def test_a_token_file_may_be_in_the_users_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TORCH_REMOTE_TOKEN_FILE", "~/token")
    with serving(f"unix://{tmp_path}/s", "--token-file=~/token") as url:
        assert (tmp_path / "token").exists()
        torch_remote.connect(url).stop()


def test_a_token_at_one_end_only_is_told_with_what_to_do_at_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(f"unix://{tmp_path}/s", "--token-file", f"{tmp_path}/token") as url:
        with pytest.raises(torch_remote.ConnectionError) as without:
            torch_remote.connect(url)
        assert "the server wants a token" in str(without.value)
        assert "on this side set TORCH_REMOTE_TOKEN_FILE" in str(without.value)
        monkeypatch.setenv("TORCH_REMOTE_TOKEN", "another-token-another-token")
        with pytest.raises(torch_remote.ConnectionError) as wrong:
            torch_remote.connect(url)
        assert "must name a copy of the server's --token-file" in str(wrong.value)
    with serving(f"unix://{tmp_path}/s2") as url:
        with pytest.raises(torch_remote.ConnectionError) as with_one:
            torch_remote.connect(url)
        assert "unset TORCH_REMOTE_TOKEN_FILE and TORCH_REMOTE_TOKEN" in str(with_one.value)
        assert "start the server with --token-file" in str(with_one.value)
