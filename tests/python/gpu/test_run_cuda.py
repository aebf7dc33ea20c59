"""`torch-remote run` of a script for CUDA on a GPU's server: the losses of local CUDA.

Each run is a process of its own. The client's see no GPU, as on a laptop; the server's do.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import DEADLINE, serving

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")

SCRIPT = Path(__file__).resolve().parents[3] / "examples/cuda_training.py"
STAND_IN = Path(__file__).resolve().parents[1] / "ssh_stand_in.py"
PRECISIONS = {"float32": {}, "autocast": {"AMP": "1"}}


def train(command: list[str], used: str, **variables: str) -> list[str]:
    """The losses and scores that the script prints, in nine digits."""
    done = subprocess.run(
        [*command, str(SCRIPT)],
        env={**os.environ, "TORCHDEVICE_LOG_LEVEL": "ERROR", **variables},
        capture_output=True, text=True, timeout=2 * DEADLINE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"on {used}" in done.stdout
    assert torch.cuda.get_device_name() in done.stdout
    figures = re.findall(r"loss (\S+)", done.stdout) + re.findall(r"'(\S+)'", done.stdout)
    assert len(figures) == 5
    return figures


def train_remotely(*options: str, **variables: str) -> list[str]:
    command = [sys.executable, "-m", "torch_remote_cli", "run", *options]
    return train(command, "remote", **variables)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_over_tcp_the_losses_are_those_of_local_cuda(precision: str, tmp_path: Path) -> None:
    here = train([sys.executable], "cuda", **PRECISIONS[precision])
    token = str(tmp_path / "token")
    with serving("tcp://127.0.0.1:0", "--token-file", token) as url:
        there = ("--on", url, "--token-file", token)
        hidden = {"CUDA_VISIBLE_DEVICES": "", **PRECISIONS[precision]}
        assert train_remotely(*there, **hidden) == here
        # A GPU of the client is not used: the URL says where the script runs.
        assert train_remotely(*there, **PRECISIONS[precision]) == here


def test_over_ssh_the_losses_are_those_of_local_cuda(tmp_path: Path) -> None:
    """With a stand-in for ssh, which runs the command here and shows it the GPU."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, words in {
        "ssh": ["env", "-u", "CUDA_VISIBLE_DEVICES", sys.executable, str(STAND_IN)],
        "torch-remote": [sys.executable, "-m", "torch_remote_cli"],
    }.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        (folder / name).chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    found = train_remotely(
        "--on", "ssh://gpu-box", PATH=path, TEST_HOST_PATH=path, CUDA_VISIBLE_DEVICES=""
    )
    assert found == train([sys.executable], "cuda")
