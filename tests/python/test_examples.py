"""The examples run, and train on `remote` to the same bits as on the CPU in a process without the backend."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TIMEOUT_S = 60
DEMO_LIMIT_S = 20

TRAININGS = ["train_mlp.py", "train_cnn.py", "train_transformer.py", "train_lstm.py"]
OPTIMIZERS = {
    "sgd": ["--optimizer", "sgd"],
    "adam_foreach": ["--optimizer", "adam", "--foreach"],
    "adamw_foreach": ["--optimizer", "adamw", "--foreach"],
    "adamw_fused": ["--optimizer", "adamw", "--fused"],
}


def start(example: str, *arguments: str, device: str) -> subprocess.Popen[str]:
    # Without the autoload the reference is plain PyTorch: nothing of ours is in its process.
    autoload = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"} if device == "cpu" else {}
    # Several processes run at once: threads of one that wait by spinning would take the others' cores.
    threads = {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, str(EXAMPLES / example), "--device", device, *arguments],
        env=os.environ | autoload | threads,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    try:
        output, errors = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    return output


def output_on_both_devices(example: str, *arguments: str) -> tuple[str, str]:
    both = [start(example, *arguments, device=device) for device in ("remote", "cpu")]
    remote, cpu = (finish(process) for process in both)
    return remote, cpu


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("example", TRAININGS)
def test_losses_are_those_of_the_cpu_bit_for_bit(example: str, optimizer: str) -> None:
    remote, cpu = output_on_both_devices(example, *OPTIMIZERS[optimizer])
    losses = [float.fromhex(text) for text in re.findall(r"-?0x\S+", cpu)]
    assert losses[-1] < losses[0], "the example learns nothing"
    assert remote.splitlines() == cpu.splitlines()


def test_quickstart_prints_what_the_cpu_prints() -> None:
    remote, cpu = output_on_both_devices("quickstart.py")
    assert remote == cpu
    assert "tensor(" in remote


def test_demo_learns_and_reports_its_traffic_within_its_time_limit() -> None:
    started = time.monotonic()
    lines = finish(start("demo.py", device="remote")).splitlines()
    assert time.monotonic() - started < DEMO_LIMIT_S
    losses = [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", "\n".join(lines))]
    assert losses[-1] < losses[0] / 2
    traffic = "\n".join(lines[-3:])
    assert all(word in traffic for word in ("calls sent", "waited for an answer", "bytes sent"))


def test_every_example_is_tested() -> None:
    tested = {*TRAININGS, "quickstart.py", "demo.py", "common.py"}
    assert {path.name for path in EXAMPLES.glob("*.py")} == tested
