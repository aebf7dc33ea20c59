"""`TORCH_REMOTE=… python train.py` says at its end if the program has not used the machine."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from helpers import DEADLINE, run_python

import torch_remote_cli
from torch_remote import _launch
from torch_remote_cli.commands import run

pytestmark = pytest.mark.slow

URL = "unix:///nobody/listens"
LINE = (
    f"torch_remote: TORCH_REMOTE={URL} was not used: this program does not import torch_remote; "
    "`torch-remote run SCRIPT` uses it\n"
)


def test_a_program_that_does_not_import_torch_remote_ends_with_one_line() -> None:
    done = run_python("import torch; print(torch.ones(2).sum())", anew=True, TORCH_REMOTE=URL)
    assert (done.returncode, done.stdout, done.stderr) == (0, "tensor(2.)\n", LINE)


def test_a_fork_that_has_imported_torch_remote_may_have_used_the_machine() -> None:
    code = """
        import multiprocessing, torch
        def work(name): __import__(name)
        for name in ("math", NAME):
            process = multiprocessing.get_context("fork").Process(target=work, args=(name,))
            process.start()
            process.join()
    """
    for name, line in (("json", LINE), ("torch_remote", "")):
        done = run_python(code.replace("NAME", repr(name)), anew=True, TORCH_REMOTE=URL)
        assert (done.returncode, done.stderr) == (0, line)


def test_a_program_that_uses_the_machine_or_has_none_ends_quietly() -> None:
    code = "import torch, torch_remote; print(torch.ones(2, device='remote').sum().item())"
    for url in ("local", ""):
        done = run_python(code, anew=True, TORCH_REMOTE=url)
        assert (done.returncode, done.stdout, done.stderr) == (0, "2.0\n", "")


@pytest.mark.parametrize(
    ("url", "variables"),
    [
        (URL, {}),
        ("tcp://127.0.0.1", {}),  # without a port: no session is begun
        (URL, {"TORCH_REMOTE_PATIENCE": "abc"}),  # nor here
    ],
)
def test_a_program_that_cannot_use_the_machine_ends_with_that_error_only(
    url: str, variables: dict[str, str]
) -> None:
    code = "import torch, torch_remote; torch.ones(2, device='remote')"
    done = run_python(code, anew=True, TORCH_REMOTE=url, **variables)
    assert done.returncode == 1 and "Error: " in done.stderr
    assert "was not used" not in done.stderr


def test_a_program_that_goes_on_after_a_failed_connection_ends_quietly() -> None:
    code = """
        import torch, torch_remote
        try:
            torch.ones(2, device="remote")
        except torch_remote.ConnectionError as error:
            print("failed")
    """
    done = run_python(code, anew=True, TORCH_REMOTE=URL)
    assert (done.returncode, done.stdout, done.stderr) == (0, "failed\n", "")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """As in a program that has imported torch and nothing of ours, with TORCH_REMOTE set."""
    # multiprocessing: other tests of this process may have started children.
    for name in [*sys.modules]:
        is_ours = name.startswith("torch_remote") and name != "torch_remote_cli"
        if is_ours or name.startswith("multiprocessing.popen_"):
            monkeypatch.delitem(sys.modules, name)
    for name in torch_remote_cli._LAUNCHERS:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(
        sys.modules, "multiprocessing.process", SimpleNamespace(parent_process=lambda: None)
    )
    monkeypatch.setenv("TORCH_REMOTE", f"{URL}?pin=secret")
    monkeypatch.setattr(sys, "argv", ["/home/me/train.py"])
    return monkeypatch


def told(capsys: pytest.CaptureFixture[str], pid: int | None = None) -> str:
    torch_remote_cli._tell_if_unused(os.getpid() if pid is None else pid)
    return capsys.readouterr().err


def test_the_line_names_the_script_and_no_option_of_the_url(
    alone: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(capsys) == LINE.replace("SCRIPT", "/home/me/train.py")


def test_a_program_that_imports_it_and_makes_no_tensor_is_told_that(
    alone: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    alone.setitem(sys.modules, "torch_remote._launch", _launch)
    alone.setattr(_launch, "has_used_machine", lambda: False)
    assert "has made no tensor on that device" in told(capsys)
    for error in ("'cuda' is no device", "no such file: local"):
        alone.setattr(sys, "last_value", RuntimeError(error), raising=False)
        assert "has made no tensor on that device" in told(capsys)
    alone.setattr(_launch, "has_used_machine", lambda: True)
    assert told(capsys) == ""


def test_launchers_commands_parents_children_and_programs_without_a_setting_say_nothing(
    alone: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(capsys, pid=1) == ""  # a fork
    spawned = [f"multiprocessing.popen_{kind}" for kind in ("spawn_posix", "forkserver")]
    for name in (*torch_remote_cli._LAUNCHERS, *spawned, "torch_remote_cli.errors"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(sys.modules, name, ModuleType(name))
            assert told(capsys) == ""
    with pytest.MonkeyPatch.context() as patch:
        child = SimpleNamespace(parent_process=lambda: "the parent")
        patch.setitem(sys.modules, "multiprocessing.process", child)
        assert told(capsys) == ""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", None)
        torch_remote_cli._tell_if_unused(os.getpid())
    assert told(capsys) != ""
    alone.delenv("TORCH_REMOTE")
    assert told(capsys) == ""


def test_forks_may_have_used_the_machine_only_if_torch_remote_was_imported(
    alone: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    alone.setitem(sys.modules, "multiprocessing.popen_fork", ModuleType("popen_fork"))
    assert told(capsys) == LINE.replace("SCRIPT", "/home/me/train.py")
    alone.setitem(sys.modules, "torch_remote", ModuleType("torch_remote"))
    assert told(capsys) == ""


def test_a_program_with_workers_of_a_loader_ends_with_one_line() -> None:
    code = """
        import torch
        from torch.utils.data import DataLoader
        print([int(each) for each in DataLoader(range(2), num_workers=1)])
    """
    done = run_python(code, anew=True, TORCH_REMOTE=URL)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0, 1]\n", LINE)


@pytest.mark.parametrize("module", ["torch.distributed.run", "accelerate.commands.launch"])
def test_a_launcher_run_by_its_module_says_nothing(module: str) -> None:
    if module.startswith("accelerate"):
        pytest.importorskip("accelerate")
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"], env={**os.environ, "TORCH_REMOTE": URL},
        capture_output=True, text=True, timeout=DEADLINE, check=True,
    )  # fmt: skip
    assert "usage" in done.stdout and "was not used" not in done.stderr


def test_a_child_of_run_that_is_left_alone_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    registered: list[object] = []
    monkeypatch.setattr(torch_remote_cli.atexit, "register", lambda *args: registered.append(args))
    monkeypatch.setattr(torch_remote_cli, "_explain_checkpoints", lambda: None)
    monkeypatch.delenv("TORCH_REMOTE_RUN", raising=False)
    options = argparse.Namespace(on=URL, token_file="", read_as="", waits=False, quiet=False)
    for name, value in run.environment_of(options).items():
        if name != "TORCH_REMOTE_RUN":
            monkeypatch.setenv(name, value)
    torch_remote_cli._autoload()
    assert registered == []
    monkeypatch.setenv("TORCH_REMOTE", "unix:///another")  # set by the program itself
    torch_remote_cli._autoload()
    assert len(registered) == 1


def test_the_first_example_for_another_machine_is_run() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    section = readme.partition("## A server on another machine")[2]
    first = section.partition("```sh\n")[2].partition("\n")[0]
    assert first.startswith("torch-remote run --on ssh://gpu-box train.py")
    assert "TORCH_REMOTE=ssh://gpu-box python" not in readme
