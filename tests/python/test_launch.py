"""Programs of several processes: under `torch-remote run`, and with `import torch_remote`.

tests/libraries/test_launch.py has `accelerate launch` and Lightning.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import launched_training
import pytest
from helpers import DEADLINE, is_alive, serving, wait_until

pytestmark = pytest.mark.slow

SCRIPT = Path(launched_training.__file__)
QUIET = {"TORCHDEVICE_LOG_LEVEL": "ERROR", "OMP_NUM_THREADS": "1"}
RUN = ("-m", "torch_remote_cli", "run")
TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node=2")


def start(*words: object, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *map(str, words)], env={**os.environ, **QUIET, **variables}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip


def output(*words: object, status: int = 0, **variables: str) -> str:
    with start(*words, **variables) as process:
        try:
            said = process.communicate(timeout=2 * DEADLINE)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert process.returncode == status, said
    return said


def assert_trained(folder: Path) -> None:
    seen = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]
    assert [each["device"] for each in seen] == ["remote:0"] * 2
    assert [each["losses"] for each in seen] == launched_training.expected_losses()


def test_ranks_of_torchrun_under_run(tmp_path: Path) -> None:
    output(*RUN, *TORCHRUN, SCRIPT, "cuda", tmp_path)
    assert_trained(tmp_path)


def test_ranks_of_torchrun_with_the_import(tmp_path: Path) -> None:
    output("-m", "torch.distributed.run", *TORCHRUN[1:], SCRIPT, "remote", tmp_path)
    assert_trained(tmp_path)


def test_spawned_processes_under_run_on_one_server(tmp_path: Path) -> None:
    with serving(f"unix://{tmp_path}/socket", "--peers") as url:
        output(*RUN, "--on", url, SCRIPT, "cuda", tmp_path, "--spawn", 2)
    assert_trained(tmp_path)


def test_spawned_processes_with_the_import(tmp_path: Path) -> None:
    output(SCRIPT, "remote", tmp_path, "--spawn", 2)
    assert_trained(tmp_path)


CHILDREN = """
import multiprocessing, os, subprocess, sys
import torch

ELSEWHERE = "import sys, torch; print('torch_remote' in sys.modules, 'TorchDevice' in sys.modules)"

def device():
    return str(torch.zeros(1, device="cuda").device), str(torch.zeros(1).device)

def tell(queue):
    queue.put(device())

if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        child = context.Process(target=tell, args=(queue,))
        child.start()
        assert queue.get() == ("remote:0", "cpu"), method
        child.join()
        assert child.exitcode == 0, method
    assert device() == ("remote:0", "cpu")
    for first in ("torch", "torch_remote", "TorchDevice"):
        script = f"import {first}, torch; exit(torch.ones(5).cuda().is_remote * 5)"
        assert subprocess.run([sys.executable, "-c", script]).returncode == 5, first
    del os.environ["TORCH_REMOTE_RUN"]
    subprocess.run([sys.executable, "-c", ELSEWHERE], check=True)
"""


def test_python_children_of_a_redirected_program_are_redirected(tmp_path: Path) -> None:
    script = tmp_path / "children.py"
    script.write_text(CHILDREN)
    said = output(*RUN, script)
    assert said.splitlines()[-1:] == ["False False"], said


FAILING = """
import os, sys, torch, torch_remote

rank = int(os.environ["LOCAL_RANK"])
torch.ones(1, device="cuda").item()
pid = int(torch_remote.machines()[0].status()["pid"])
sys.stdout.write(f"server {pid}\\n")  # at once: ranks write to one pipe
sys.stdout.flush()
if rank == 1 and sys.argv[1] == "fail":
    sys.exit(7)
while True:
    torch.ones(1, device="cuda").item()
"""


def servers_in(said: str) -> list[int]:
    return [int(line.split()[1]) for line in said.splitlines() if line.startswith("server ")]


def test_a_rank_that_fails_ends_the_others_and_their_servers(tmp_path: Path) -> None:
    script = tmp_path / "failing.py"
    script.write_text(FAILING)
    said = output(*RUN, *TORCHRUN, script, "fail", status=1)
    assert "exitcode  : 7" in said
    assert len(servers_in(said)) == 2
    assert wait_until(lambda: not any(map(is_alive, servers_in(said))))


def test_ctrl_c_ends_ranks_and_their_servers(tmp_path: Path) -> None:
    script = tmp_path / "endless.py"
    script.write_text(FAILING)
    with start(*RUN, *TORCHRUN, script, "endless") as process:
        assert process.stdout is not None
        servers: list[int] = []
        while len(servers) < 2:
            line = process.stdout.readline()
            assert line, "it ended by itself"
            servers += servers_in(line)
        os.killpg(process.pid, signal.SIGINT)
        said = process.communicate(timeout=DEADLINE)[0]
    assert process.returncode != 0, said
    assert wait_until(lambda: not any(map(is_alive, servers))), said


def test_commands_of_a_redirected_program_are_no_part_of_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch_remote_cli

    monkeypatch.setenv("TORCH_REMOTE_RUN", "1")
    assert torch_remote_cli.main(["--version"]) == 0
    assert "TORCH_REMOTE_RUN" not in os.environ
    assert capsys.readouterr().out
