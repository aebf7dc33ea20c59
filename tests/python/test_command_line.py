"""`python -m torch_remote` is the command `torch-remote`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from helpers import DEADLINE

import torch_remote


def run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)


@pytest.mark.parametrize(
    "arguments", [[], ["--help"], ["--version"], ["serve", "--help"], ["no-such-command"]]
)
def test_the_package_runs_as_the_command_does(arguments: list[str]) -> None:
    done, command = run("torch_remote", *arguments), run("torch_remote_cli", *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (
        command.returncode,
        command.stdout,
        command.stderr,
    )


def test_the_bare_package_prints_help() -> None:
    done = run("torch_remote")
    assert done.returncode == 0
    assert done.stdout.startswith("usage: torch-remote COMMAND")


def test_the_package_serves(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch_remote", "serve", "--listen", f"unix://{tmp_path}/s"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == f"listening on unix://{tmp_path}/s\n"
            torch_remote.connect(f"unix://{tmp_path}/s").stop()
        finally:
            server.terminate()
