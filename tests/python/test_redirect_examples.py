"""The demo scripts and the code of the requirements, on the CPU and on the remote device."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DEMOS = sorted(each.name for each in EXAMPLES.glob("demo_*.py") if "transformers" not in each.name)
TARGETS = {"cpu": {}, "remote": {"TORCH_REMOTE": "local"}}

# One process for all scripts: importing torch takes longest.
RUN_ALL = """
import runpy, sys
for script in sys.argv[1:]:
    print("script", script)
    runpy.run_path(script, run_name="__main__")
"""

# The blocks of the requirements (seeds 003 and 004), as they are written there.
BLOCKS = {
    "usage": """
import TorchDevice  # Must be imported first.
import torch

device = torch.device('cuda')  # On unsupported hardware this will be redirected.
assert str(device) == EXPECTED
""",
    "optimizers": """
import torch
import torch.nn as nn
import torch.optim as optim
from TorchDevice import TorchDevice

# Obtain the configured device
device = TorchDevice()
print(f"Using device: {device}")

# Create a model and move it to the device
model = nn.Linear(10, 2).to(device.device)

# Create an optimizer
optimizer = optim.SGD(model.parameters(), lr=0.01)
assert str(model.weight.device) == EXPECTED == str(device)
""",
    "implicit": """
import TorchDevice, torch
tensor = torch.randn(2, 3)
assert str(tensor.device) == EXPECTED
""",
    "explicit cpu": """
import TorchDevice, torch
tensor = torch.tensor([1, 2, 3], device="cpu")
assert str(tensor.device) == EXPECTED
""",
    "override": """
import TorchDevice, torch
tensor = torch.tensor([1, 2, 3], device="cpu:-1")
assert str(tensor.device) == "cpu"
torch.device("cpu:-1")
""",
    "conversion": """
import TorchDevice, torch
tensor = torch.randn(2, 3)
cpu_tensor = tensor.to("cpu:-1")
assert str(cpu_tensor.device) == "cpu"
torch.device("cpu:-1")
""",
    "accelerator": """
import TorchDevice, torch
tensor_mps = torch.tensor([1, 2, 3], device="mps")
assert str(tensor_mps.device) == EXPECTED
""",
}


def run(target: str, *scripts: Path) -> str:
    environment = {**os.environ, "TORCHDEVICE_LOG_LEVEL": "ERROR", **TARGETS[target]}
    done = subprocess.run(
        [sys.executable, "-c", RUN_ALL, *map(str, scripts)],
        env=environment, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_there_are_the_demos_that_were_asked_for() -> None:
    asked = "basic_tensor matrix_multiplication neural_network unsupported_functions device_info"
    assert {f"demo_{name}.py" for name in asked.split()} <= set(DEMOS)


@pytest.mark.parametrize("target", TARGETS)
def test_demos_run(target: str) -> None:
    output = run(target, *(EXAMPLES / name for name in DEMOS))
    assert output.count("script ") == len(DEMOS)
    assert ("used remote:0" if target == "remote" else "used cpu") in output


@pytest.mark.parametrize("target", TARGETS)
def test_blocks_of_the_requirements_run(target: str, tmp_path: Path) -> None:
    expected = "remote:0" if target == "remote" else "cpu"
    scripts = []
    for name, block in BLOCKS.items():
        script = tmp_path / f"{name.replace(' ', '_')}.py"
        script.write_text(f"EXPECTED = {expected!r}\n{block}")
        scripts.append(script)
    assert "Using device: " + expected in run(target, *scripts)


@pytest.mark.parametrize("target", TARGETS)
def test_transformers_run(target: str) -> None:
    pytest.importorskip("transformers")
    assert "generated" in run(target, EXAMPLES / "demo_transformers.py")
