"""Every code block of seed 000 (the README of torch-modal), as it is written there."""

from __future__ import annotations

import pytest
from helpers import assert_runs
from seed_scripts import ROOT, run_blocks, run_line

pytestmark = pytest.mark.slow

BASIC_USAGE = """
import torch
import torch_modal

# Create tensors and move to modal device
x = torch.randn(2, 2).modal()
y = torch.randn(2, 2).modal()

print(f"x device: {x.device}")  # modal:0
print(f"y device: {y.device}")  # modal:0

# Operations work between modal tensors
z = x.mm(y)  # Success - both on modal device
result = x + y  # Success - element-wise operations

# Operations fail between modal and CPU tensors
cpu_tensor = torch.randn(2, 2)
# z = x.mm(cpu_tensor)  # Raises RuntimeError!
"""

DEVICE_MANAGEMENT = """
import torch_modal

# Check device availability
print(f"Modal available: {torch_modal.modal.is_available()}")
print(f"Device count: {torch_modal.modal.device_count()}")
print(f"Device name: {torch_modal.modal.get_device_name()}")

# Move tensors with options
x = torch.randn(3, 3, dtype=torch.float32)
y = x.modal(dtype=torch.float64, copy=True)  # Convert dtype and copy
"""


def test_basic_usage() -> None:
    assert run_blocks(BASIC_USAGE) == ["x device: modal:0", "y device: modal:0"]


def test_the_line_that_raises_does() -> None:
    raising = BASIC_USAGE.replace("# z = x.mm(cpu_tensor)", "z = x.mm(cpu_tensor)")
    code = f"try:\n    exec({raising!r})\nexcept RuntimeError as error:\n    print(error)"
    assert "same device" in assert_runs(code).splitlines()[-1]


def test_device_management() -> None:
    lines = run_blocks(BASIC_USAGE, DEVICE_MANAGEMENT, "print(y.dtype, y.device)")
    assert lines[2:] == [
        "Modal available: True",
        "Device count: 2",
        "Device name: Modal Device",
        "torch.float64 modal:0",
    ]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("python test_torch_modal.py", "OK"),
        ("python test_torch_modal.py --debug", "operator=aten::mm"),
        ("python test_torch_modal.py --verbose", "test_there_are_two_devices"),
        ("pytest test_torch_modal.py", "passed"),
    ],
)
def test_the_test_script(line: str, words: str) -> None:
    assert words in run_line(line)


def test_the_installation_takes_every_package() -> None:
    # `pip install -e .` itself takes minutes; what it installs is in the project's file.
    text = (ROOT / "pyproject.toml").read_text()
    packages = sorted(path.parent.name for path in (ROOT / "python").glob("*/__init__.py"))
    assert packages == [
        "TorchDevice",
        "torch_modal",
        "torch_modal_remote",
        "torch_remote",
        "torch_remote_cli",
        "torch_remote_execution",
        "torch_remote_patches",
    ]
    assert all(f'"python/{package}"' in text for package in packages)
