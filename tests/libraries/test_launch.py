"""`accelerate launch`, and the libraries under `torch-remote run`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import accelerated_training
import pytest

HERE = Path(__file__).parent
SCRIPT = Path(accelerated_training.__file__)
RUN = ("-m", "torch_remote_cli", "run")
LAUNCH = ("-m", "accelerate.commands.launch")
COMMAND = ("-m", "accelerate.commands.accelerate_cli", "launch")  # imports the module LAUNCH
TWO = ("--multi_gpu", "--num_processes=2", "--main_process_port=0")
# Each trains, or computes, on our device as on the CPU.
SAME_UNDER_RUN = (
    "test_lightning.py::test_auto_and_its_names_train_on_our_device_as_on_the_cpu",
    "test_lightning.py::test_fabric",
    "test_lightning.py::test_precisions",
    "test_transformers.py::test_the_trainer_trains_on_our_device_as_on_the_cpu",
    "test_data_and_metrics.py::test_sentences_are_encoded_on_our_device",
)


def output(*words: object) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, words)], text=True, timeout=280, check=False,
        env={**os.environ, "TORCHDEVICE_LOG_LEVEL": "ERROR", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize(
    ("before", "options", "after"),
    [
        ((*RUN, *LAUNCH), (), ()),
        ((*RUN, *LAUNCH), TWO, ()),
        ((*RUN, *COMMAND), TWO[1:], ()),
        (LAUNCH, TWO, ("import",)),
    ],
    ids=["under run", "two under run", "two without --multi_gpu", "two with the import"],
)
def test_accelerate_launch(
    tmp_path: Path, before: tuple[str, ...], options: tuple[str, ...], after: tuple[str, ...]
) -> None:
    output(*before, *options, SCRIPT, tmp_path, *after)
    files = sorted(tmp_path.glob("rank*.json"))
    assert len(files) == (2 if options else 1)
    seen = [json.loads(file.read_text()) for file in files]
    assert {each["device"] for each in seen} == {"remote:0"}
    assert [each["ranks"] for each in seen] == [list(range(len(files)))] * len(files)
    assert [each["losses"] for each in seen] == accelerated_training.expected_losses(len(files))


def test_what_works_with_the_import_works_under_run() -> None:
    tests = [HERE / each for each in SAME_UNDER_RUN]
    said = output(*RUN, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests)
    assert "failed" not in said and "skipped" not in said
