"""What `make gpu-test` collects: run.py, in processes of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

TIMEOUT_S = 600


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device to compare with")
def test_training_on_remote_equals_training_on_local_cuda() -> None:
    finished = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("run.py"))],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert finished.returncode == 0, finished.stdout
