"""Every code block of seed 002 (the README of torch-remote), as it is written there."""

from __future__ import annotations

import pytest
from seed_scripts import run_blocks, run_line

pytestmark = pytest.mark.slow

BASIC_USAGE = """
import torch
import torch_remote

# Create tensors on the remote device
x = torch.randn(3, 3, device="remote")
y = torch.randn(3, 3, device="remote")

# Operations automatically use cloud GPU
result = x + y  # Executed on cloud GPU
print(result)
"""

DEVICE_MANAGEMENT = """
import torch
import torch_remote

# Check device availability
print(f"Remote available: {torch.remote.is_available()}")
print(f"Device count: {torch.remote.device_count()}")

# Move tensors with options
x = torch.randn(3, 3, dtype=torch.float32)
y = x.to("remote", dtype=torch.float64, copy=True)  # Convert dtype and copy
"""


def test_basic_usage() -> None:
    lines = run_blocks(BASIC_USAGE)
    assert len(lines) == 3 and lines[-1].endswith("device='remote:0')")


def test_device_management() -> None:
    lines = run_blocks(DEVICE_MANAGEMENT, "print(y.dtype, y.device)")
    assert lines[0] == "Remote available: True"
    assert lines[1].startswith("Device count: ")
    assert lines[2] == "torch.float64 remote:0"


def test_the_test_suite() -> None:
    said = run_line("pytest test_torch_remote.py -v")
    assert "RemoteExecutionTest" in said and "failed" not in said


def test_the_example() -> None:
    said = run_line("python example_device_usage.py")
    assert "Modal A100-40GB" in said and "x and y agree: True" in said
