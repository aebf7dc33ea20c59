"""`torch-remote run`: a training script for CUDA, unmodified, on another machine."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import DEADLINE, serving
from redirecting import redirected
from ssh_server import running_sshd

from TorchDevice import _hardware

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).resolve().parents[2] / "examples/cuda_training.py"
COMMAND = Path(sys.executable).parent / "torch-remote"


def train(*options: str, **variables: str) -> list[str]:
    """The losses and scores of the script, which must have been trained on a remote device."""
    done = subprocess.run(
        [sys.executable, "-m", "torch_remote_cli", "run", *options, str(SCRIPT)],
        env={**os.environ, "TORCHDEVICE_LOG_LEVEL": "ERROR", "OMP_NUM_THREADS": "1", **variables},
        capture_output=True, text=True, timeout=2 * DEADLINE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "on remote" in done.stdout
    figures = re.findall(r"loss (\S+)", done.stdout) + re.findall(r"'(\S+)'", done.stdout)
    assert len(figures) == 5
    return figures


@functools.cache
def trained_here() -> list[str]:
    """On the embedded server, which is a CPU as the others of these tests are."""
    return train()


def test_over_tcp(tmp_path: Path) -> None:
    token = str(tmp_path / "token")
    with serving("tcp://127.0.0.1:0", "--token-file", token) as url:
        assert train("--on", url, "--token-file", token) == trained_here()


@pytest.mark.skipif(not COMMAND.exists(), reason="torch-remote is not installed")
def test_over_ssh_whatever_order_the_environment_has(tmp_path: Path) -> None:
    with running_sshd(tmp_path) as host:
        found = train("--on", f"{host}&command={COMMAND}", TORCHDEVICE_ORDER="cuda,mps,cpu")
    assert found == trained_here()


def test_the_machine_is_used_where_there_is_a_gpu_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_hardware, "_cuda_is_available", lambda: True)
    monkeypatch.setattr(_hardware, "_cuda_device_count", lambda: 2)
    with redirected("remote", "foreign") as device:  # the order that `run` sets
        assert str(torch.zeros(1, device="cuda").device) == device
        assert str(torch.zeros(1, device="cuda:1").device) == device
        assert torch.zeros(1).device.type == "cpu"
        assert torch.cuda.is_available()
        assert torch.cuda.device_count() == 1
