"""A CUDA training script, unmodified: on the CPU and on the embedded remote device."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path

import pytest
import torch
from helpers import run_python
from torch import nn

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).resolve().parents[2] / "examples/cuda_training.py"
LINES = {"cpu": "", "remote": "import torch_remote"}


@functools.cache
def output_on(target: str, amp: str, more: str = "") -> str:
    lines = ["import TorchDevice, runpy", LINES[target], more, f"runpy.run_path({str(SCRIPT)!r})"]
    environment = {"TORCHDEVICE_LOG_LEVEL": "ERROR", "AMP": amp, "OMP_NUM_THREADS": "1"}
    done = run_python("\n".join(lines), **{**environment, "TORCHDEVICE_POLICY": "full"})
    assert done.returncode == 0, done.stderr
    return done.stdout


def figures(output: str) -> list[str]:
    return re.findall(r"loss (\S+)", output) + re.findall(r"'(\S+)'", output)


def plain_cpu_figures() -> list[str]:
    """The same training without a word about CUDA, by torch alone."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12)
    features = torch.tensor([-1 + index / 127.5 for index in range(256)]).reshape(64, 4)
    data = torch.utils.data.TensorDataset(features, (features.sum(dim=1) > 0).long())
    found = []
    for _ in range(3):
        shuffled = torch.Generator().manual_seed(1)
        loader = torch.utils.data.DataLoader(data, 16, shuffle=True, generator=shuffled)
        for inputs, labels in loader:
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
        found.append(f"{loss.item():.9g}")
    model.eval()
    with torch.no_grad():
        scores = model(torch.ones(1, 4)).softmax(dim=1)
    return found + [f"{score:.9g}" for score in scores.numpy()[0]]


def test_losses_equal_those_of_plain_cpu_code() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        expected = plain_cpu_figures()
    finally:
        torch.set_num_threads(threads)
    assert figures(output_on("cpu", "0")) == expected
    assert "on cpu" in output_on("cpu", "0")
    assert figures(output_on("remote", "0")) == expected
    assert "on remote" in output_on("remote", "0")


def test_with_autocast_losses_are_close() -> None:
    expected = [float(each) for each in figures(output_on("cpu", "0"))]
    for target in LINES:
        found = [float(each) for each in figures(output_on(target, "1"))]
        assert found == pytest.approx(expected, abs=2e-2)


def test_the_script_reads_cuda_where_it_is_asked_to() -> None:
    output = output_on("remote", "0", 'TorchDevice.enable(read_as="cuda")')
    assert "on cuda" in output
    assert figures(output) == figures(output_on("cpu", "0"))


def test_the_script_runs_under_the_foreign_policy() -> None:
    output = output_on("remote", "0", 'TorchDevice.enable("foreign")')
    assert "on remote" in output
    assert len(figures(output)) == 5
    assert os.environ.get("TORCHDEVICE_POLICY") is None
