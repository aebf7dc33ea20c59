"""The examples run on `remote` and train to the same bits as plain PyTorch on the CPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TIMEOUT_S = 120

TRAININGS = ["train_mlp.py", "train_cnn.py", "train_transformer.py", "train_lstm.py"]
OPTIMIZERS = [
    "--optimizer sgd",
    "--optimizer adam --foreach",
    "--optimizer adamw --foreach",
    "--optimizer adamw --fused",
]

# Runs an example as a script for each argument after its path: importing torch takes longest.
SEVERAL_TIMES = """
import runpy, sys
from pathlib import Path
example, *runs = sys.argv[1:]
sys.path.insert(0, str(Path(example).parent))
for run in runs:
    print("run", run)
    sys.argv = [example, *run.split()]
    runpy.run_path(example, run_name="__main__")
"""


def start(*command: str, device: str) -> subprocess.Popen[str]:
    # Without the autoload the reference is plain PyTorch, without our code.
    autoload = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"} if device == "cpu" else {}
    # Several processes run at once: spinning threads of one would take the cores of the others.
    threads = {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, *command],
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


def losses_of_each_run(output: str, device: str) -> dict[str, list[float]]:
    runs = [text.partition("\n") for text in output.split("run ")[1:]]
    return {
        name.replace(f"--device {device} ", ""): [
            float.fromhex(number) for number in re.findall(r"-?0x\S+", lines)
        ]
        for name, _, lines in runs
    }


@pytest.mark.parametrize("example", TRAININGS)
def test_losses_are_those_of_the_cpu_bit_for_bit(example: str) -> None:
    path = str(EXAMPLES / example)
    both = []
    for device in ("remote", "cpu"):
        runs = [f"--device {device} {optimizer}" for optimizer in OPTIMIZERS]
        both.append(start("-c", SEVERAL_TIMES, path, *runs, device=device))
    outputs = [finish(process) for process in both]
    remote = losses_of_each_run(outputs[0], "remote")
    cpu = losses_of_each_run(outputs[1], "cpu")
    assert list(cpu) == OPTIMIZERS
    for run, losses in cpu.items():
        assert losses[-1] < losses[0], f"the example learns nothing with {run}"
        assert remote[run] == losses, run


def test_an_example_runs_as_a_script() -> None:
    script = str(EXAMPLES / "train_mlp.py")
    output = finish(start(script, "--device", "remote", "--steps", "2", device="remote"))
    assert output.count("loss ") == 2


def test_a_step_that_is_a_graph_gives_the_losses_of_the_cpu_bit_for_bit() -> None:
    script = str(EXAMPLES / "train_graph.py")
    both = [start(script, "--device", device, device=device) for device in ("remote", "cpu")]
    remote, cpu = (finish(process) for process in both)
    assert remote == cpu
    assert remote.count("loss ") == 50


def test_quickstart_prints_what_the_cpu_prints() -> None:
    script = str(EXAMPLES / "quickstart.py")
    both = [start(script, "--device", device, device=device) for device in ("remote", "cpu")]
    remote, cpu = (finish(process) for process in both)
    assert remote == cpu
    assert "tensor(" in remote


def test_demo_learns_and_reports_its_traffic() -> None:
    lines = finish(
        start(str(EXAMPLES / "demo.py"), "--device", "remote", device="remote")
    ).splitlines()
    losses = [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", "\n".join(lines))]
    assert losses[-1] < losses[0] / 2
    traffic = "\n".join(lines[-3:])
    assert all(word in traffic for word in ("calls sent", "waited for an answer", "bytes sent"))


# As in an environment with a wheel and torch only.
WITHOUT_NUMPY = """
import runpy, sys, warnings
from pathlib import Path
sys.modules["numpy"] = sys.modules["psutil"] = None  # importing them raises ImportError
warnings.filterwarnings("ignore", "Failed to initialize NumPy")
scripts = sys.argv[1:]
sys.path.insert(0, str(Path(scripts[0]).parent))
for script in scripts:
    print("script", script, flush=True)
    sys.argv = [script]
    runpy.run_path(script, run_name="__main__")
"""


def test_the_examples_need_neither_numpy_nor_psutil() -> None:
    readme = (EXAMPLES.parent / "README.md").read_text()
    named = {*re.findall(r"examples/(\w+\.py)", readme), "quickstart.py", "demo.py"}
    assert {"cuda_training.py", "quickstart.py", "demo.py"} <= named
    plain = sorted(named - {"cuda_training.py"})
    redirected = [
        path.name for path in EXAMPLES.glob("demo_*.py") if "transformers" not in path.stem
    ]
    redirected += ["cuda_training.py"]  # after `import TorchDevice`, which the others have
    both = []
    for names in (plain, redirected):
        paths = [str(EXAMPLES / name) for name in names]
        both.append(start("-c", WITHOUT_NUMPY, *paths, device="remote"))
    for process, names in zip(both, (plain, redirected), strict=True):
        assert finish(process).count("script ") == len(names)


def test_every_example_is_tested() -> None:
    elsewhere = {"train_on_ssh.py", "cuda_training.py"}  # test_providers_ssh.py, test_redirect_*.py
    elsewhere |= {path.name for path in EXAMPLES.glob("demo_*.py")}  # test_redirect_examples.py
    tested = {*TRAININGS, *elsewhere, "quickstart.py", "demo.py", "train_graph.py", "common.py"}
    assert {path.name for path in EXAMPLES.glob("*.py")} == tested
