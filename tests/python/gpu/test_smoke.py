"""What `make gpu-test` runs: programs with local CUDA and `remote` in separate processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
TIMEOUT_S = 600

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="there is no CUDA device to compare with"
)


def run(script: Path, *arguments: str) -> None:
    finished = subprocess.run(
        [sys.executable, str(script), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
    )
    print(finished.stdout)
    assert finished.returncode == 0


def test_training_on_remote_equals_training_on_local_cuda() -> None:
    run(HERE / "run.py")


def test_a_cuda_server_gives_what_local_cuda_gives() -> None:
    run(HERE / "suites.py")


def test_a_cuda_server_runs_the_kernels_that_local_cuda_runs() -> None:
    run(HERE.parent / "conformance" / "kernel_suite.py", "--server", "cuda", "--samples", "2")
