"""`torch-remote doctor` names what is wrong with a broken set-up, and says what to do about it.

Each set-up is really broken: doctor itself runs unchanged, in a process of its own.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from helpers import ANSWER_TIME, DEADLINE, run_python, serving

import torch_remote
from torch_remote_cli import checks_local
from torch_remote_cli.environment import LOG_LEVELS, OF_TORCH_DEVICE

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parents[1] / "golden"


def doctor(*options: str, **variables: str) -> tuple[int, list[dict[str, str]]]:
    """The exit status and the findings that are not in order."""
    environment = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith("TORCH_REMOTE") or key == ANSWER_TIME
    }
    done = subprocess.run(
        [sys.executable, "-m", "torch_remote_cli", "doctor", "--json", "-q", *options],
        capture_output=True, text=True, timeout=DEADLINE, check=False,
        env={**environment, **variables},
    )  # fmt: skip
    assert done.stderr == "", done.stderr
    found: list[dict[str, str]] = json.loads(done.stdout)["findings"]
    return done.returncode, [one for one in found if one["state"] in ("warning", "problem")]


def only(found: list[dict[str, str]]) -> dict[str, str]:
    assert len(found) == 1, found
    assert found[0]["remedy"]
    return found[0]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server without a token and without a GPU."""
    with serving(f"unix://{tmp_path_factory.mktemp('server')}/s", "--device", "cpu") as listening:
        yield listening


def with_other_torch(folder: Path, **changes: str | None) -> str:
    """A PYTHONPATH on which `torch.version` says something else."""
    source = Path(torch.__file__).with_name("version.py").read_text()
    source += "".join(f"\n{name} = {value!r}" for name, value in changes.items())
    (folder / "version.py").write_text(source + "\n")
    (folder / "sitecustomize.py").write_text(
        "import importlib.util, sys\n"
        "class Finder:\n"
        "    @staticmethod\n"
        "    def find_spec(name, path=None, target=None):\n"
        "        if name == 'torch.version':\n"
        f"            return importlib.util.spec_from_file_location(name, {str(folder)!r}\n"
        "                + '/version.py')\n"
        "sys.meta_path.insert(0, Finder)\n"
    )
    return str(folder)


def test_a_set_up_in_order_has_no_problem(url: str) -> None:
    assert doctor("--on", url) == (0, [])


def test_a_missing_server_program(tmp_path: Path) -> None:
    shutil.copytree(
        Path(torch_remote.__file__).parent,
        tmp_path / "torch_remote",
        symlinks=True,
        ignore=shutil.ignore_patterns("bin", "__pycache__"),
    )
    status, found = doctor(PYTHONPATH=str(tmp_path))
    assert status == 1
    assert found[0]["check"] == "server program" and found[0]["state"] == "problem"
    assert "make build" in found[0]["remedy"]


def test_torch_of_another_minor_than_the_extension_was_built_for(tmp_path: Path, url: str) -> None:
    path = with_other_torch(tmp_path, __version__="2.99.0")
    status, found = doctor("--on", url, PYTHONPATH=path)
    problem = only(found)
    assert (status, problem["check"]) == (1, "extension")
    assert "2.99.0" in problem["text"] and "make build" in problem["remedy"]


@pytest.mark.parametrize("scheme", ["unix", "tcp"])
def test_a_server_that_is_not_there(scheme: str, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"unix://{tmp_path}/nobody" if scheme == "unix" else f"tcp://127.0.0.1:{port}"
    status, found = doctor("--on", address, TORCH_REMOTE_PATIENCE="0")
    problem = only(found)
    assert (status, problem["check"]) == (1, "machine")
    assert problem["text"].count(address) == 1 and "torch-remote serve" in problem["remedy"]


def test_a_setting_that_is_wrong_is_to_be_corrected(url: str) -> None:
    for variable, value in (("TORCH_REMOTE_KEEPALIVE", "soon"), ("TORCH_REMOTE_NET", "far")):
        status, found = doctor("--on", url, **{variable: value})
        problem = only(found)
        assert (status, problem["check"]) == (1, "machine")
        assert variable in problem["text"] and "correct it" in problem["remedy"]
        assert "torch-remote serve" not in problem["remedy"]


def test_a_log_level_that_there_is_not_is_told_in_the_words_of_the_programs(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = "import torch, torch_remote; torch.ones(2, device='remote')"
    said = run_python(program, anew=True, TORCH_REMOTE_LOG="loud").stderr
    status, found = doctor("--on", url, TORCH_REMOTE_LOG="loud")
    problem = only(found)
    assert (status, problem["check"], problem["state"]) == (1, "environment", "problem")
    assert f"torch-remote: {problem['text']}\n" in said and "'loud'" in problem["text"]
    assert "correct it" in problem["remedy"]
    for level in ("", *LOG_LEVELS):
        monkeypatch.setenv("TORCH_REMOTE_LOG", level)
        assert "TORCH_REMOTE_LOG" not in str([*checks_local.check_environment()])


def test_values_that_there_are_not_are_told_with_those_that_there_are(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, found = doctor("--on", url, TORCH_REMOTE_SANDBOX="x")
    problem = only(found)
    assert (status, problem["check"], problem["state"]) == (1, "environment", "problem")
    assert problem["text"] == "TORCH_REMOTE_SANDBOX: 'x' is not auto, off or trace"
    monkeypatch.setenv("TORCH_REMOTE_SANDBOX", "off")
    for name, known in OF_TORCH_DEVICE.items():
        for value in ("", *known, known[0].upper()):
            monkeypatch.setenv(name, value)
            assert name not in str([*checks_local.check_environment()])
        monkeypatch.setenv(name, "x")
        (found_here,) = (each for each in checks_local.check_environment() if name in each.text)
        assert all(each in found_here.text for each in known) and "'x'" in found_here.text
        assert "correct it: docs/redirection.md" in found_here.remedy
        monkeypatch.delenv(name)


@pytest.mark.parametrize("name", OF_TORCH_DEVICE)
def test_doctor_knows_the_values_that_torch_device_takes(name: str) -> None:
    program = "import TorchDevice"
    assert "ValueError" in run_python(program, **{name: "x"}).stderr
    for value in OF_TORCH_DEVICE[name]:
        assert "ValueError" not in run_python(program, **{name: value}).stderr, value


def test_an_embedded_server_that_does_not_start_is_told_with_its_status() -> None:
    status, found = doctor("--on", "local", TORCH_REMOTE_SANDBOX="x")
    assert status == 1 and [each["check"] for each in found] == ["environment", "machine"]
    assert "the embedded server ended with exit status 2 (" in found[1]["text"]


def test_ssh_that_ends_without_a_word_is_told_with_its_status(tmp_path: Path) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\nexit 255\n")
    ssh.chmod(0o755)
    status, found = doctor("--on", "ssh://box", PATH=f"{tmp_path}:{os.environ['PATH']}")
    problem = only(found)
    assert (status, problem["check"]) == (1, "machine")
    assert "ended with exit status 255" in problem["text"]
    assert problem["text"].count("ssh://box") == 1
    assert "run `ssh box` by hand" in problem["remedy"]


def test_ssh_to_a_host_without_torch_remote_says_how_to_have_it_there(tmp_path: Path) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\necho sh: 1: torch-remote: not found >&2; exit 127\n")
    ssh.chmod(0o755)
    status, found = doctor("--on", "ssh://box", PATH=f"{tmp_path}:{os.environ['PATH']}")
    problem = only(found)
    assert (status, problem["check"]) == (1, "machine")
    assert problem["text"].count("ssh://box") == 1 and "not found" in problem["text"]
    assert "ssh://box?install=1" in problem["remedy"]
    assert "serve --listen" not in problem["remedy"]


def test_a_wrong_token(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("0" * 64)
    wrong.chmod(0o600)
    with serving("tcp://127.0.0.1:0", "--token-file", f"{tmp_path}/right") as url:
        status, found = doctor("--on", url, "--token-file", str(wrong))
    problem = only(found)
    assert (status, problem["check"]) == (1, "machine")
    assert "token" in problem["text"] and "--token-file" in problem["remedy"]


def test_a_token_file_that_others_can_read(tmp_path: Path) -> None:
    token = tmp_path / "token"
    with serving("tcp://127.0.0.1:0", "--token-file", str(token)) as url:
        token.chmod(0o644)
        status, found = doctor("--on", url, TORCH_REMOTE_TOKEN_FILE=str(token))
    problem = only(found)
    assert (status, problem["check"]) == (1, "token")
    assert "644" in problem["text"] and f"chmod 600 {token}" in problem["remedy"]


def test_a_token_file_that_is_missing(tmp_path: Path, url: str) -> None:
    status, found = doctor("--on", url, "--token-file", f"{tmp_path}/missing")
    assert status == 1
    assert found[0]["check"] == "token" and "missing" in found[0]["text"]


def test_no_gpu_where_one_is_asked_for(url: str) -> None:
    status, found = doctor("--on", url, "--gpu")
    problem = only(found)
    assert (status, problem["check"]) == (1, "GPU")
    assert "--device cuda" in problem["remedy"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA works here")
def test_a_cuda_build_of_torch_without_a_driver(tmp_path: Path, url: str) -> None:
    path = with_other_torch(tmp_path, cuda="12.8")
    status, found = doctor("--on", url, PYTHONPATH=path)
    warning = only(found)
    assert (status, warning["check"], warning["state"]) == (0, "local CUDA", "warning")
    assert "12.8" in warning["text"] and "nvidia-smi" in warning["remedy"]


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_local_gpus_beside_remote_in_one_process(tmp_path: Path, url: str) -> None:
    """A libnvidia-ml of our own reports two GPUs."""
    source = tmp_path / "nvml.c"
    source.write_text(
        "int nvmlInit(void) { return 0; }\n"
        "int nvmlDeviceGetCount_v2(unsigned* count) { *count = 2; return 0; }\n"
    )
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True, timeout=DEADLINE)
    path = with_other_torch(tmp_path, cuda="12.8")
    variables = {"PYTHONPATH": path, "LD_LIBRARY_PATH": str(tmp_path)}
    status, found = doctor("--on", url, **variables)
    warnings = [one for one in found if "2 GPU" in one["text"]]
    assert (status, only(warnings)["check"]) == (0, "local CUDA")
    assert "another process" in warnings[0]["remedy"]


def test_a_server_with_another_torch(tmp_path: Path) -> None:
    here = ".".join(torch.__version__.split(".")[:2])
    other = "2.11" if here == "2.13" else "2.13"
    schemas = tmp_path / "schemas.txt"
    schemas.write_bytes(gzip.decompress((GOLDEN / f"schemas-{other}.txt.gz").read_bytes()))
    with serving(f"unix://{tmp_path}/s", "--schemas", str(schemas)) as url:
        status, found = doctor("--on", url)
    warning = only(found)
    assert (status, warning["check"], warning["state"]) == (0, "versions", "warning")
    assert f"install torch {other}" in warning["remedy"]


def test_a_slow_network(url: str) -> None:
    status, found = doctor("--on", url, TORCH_REMOTE_NET="120")
    warning = only(found)
    assert (status, warning["check"], warning["state"]) == (0, "network", "warning")
    assert "torch-remote bench" in warning["remedy"]


def test_a_server_whose_clock_is_wrong(tmp_path: Path, url: str) -> None:
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(f"{tmp_path}/m")
        door.listen()

        def answer() -> None:
            client = door.accept()[0]
            with client:
                client.sendall(f"torch_remote_time_seconds {int(time.time()) + 3600}\n".encode())

        threading.Thread(target=answer, daemon=True).start()
        status, found = doctor("--on", url, "--metrics", f"unix://{tmp_path}/m")
    warning = only(found)
    assert (status, warning["check"]) == (0, "clock")
    assert "ahead" in warning["text"] and "NTP" in warning["remedy"]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no tomllib")
def test_a_configuration_file_with_a_mistake(tmp_path: Path, url: str) -> None:
    (tmp_path / "torch-remote").mkdir()
    config = tmp_path / "torch-remote/config.toml"
    config.write_text('url = "local"\ntoken_file = ~/token\n')
    status, found = doctor("--on", url, XDG_CONFIG_HOME=str(tmp_path))
    assert status == 1
    assert found[0]["check"] == "configuration"
    assert str(config) in found[0]["text"] and "line 2" in found[0]["text"]


def test_a_variable_with_a_typing_mistake(url: str) -> None:
    status, found = doctor("--on", url, TORCH_REMOTE_TOKENFILE="/x")
    warning = only(found)
    assert (status, warning["check"]) == (0, "environment")
    assert "TORCH_REMOTE_TOKEN_FILE?" in warning["remedy"]


def test_a_metrics_socket_whose_server_has_ended(tmp_path: Path, url: str) -> None:
    with socket.socket(socket.AF_UNIX) as ended:
        ended.bind(f"{tmp_path}/m")
    status, found = doctor("--on", url, TORCH_REMOTE_METRICS=f"unix://{tmp_path}/m")
    assert (status, only(found)["check"]) == (1, "metrics")


def test_an_extension_that_kills_its_process(tmp_path: Path) -> None:
    """What no check foresees is still a finding, with the step that did not end."""
    (tmp_path / "torch_remote").mkdir()
    (tmp_path / "torch_remote/__init__.py").write_text("import os; os.abort()\n")
    status, found = doctor("--on", "unix:///tmp/x", PYTHONPATH=str(tmp_path))
    assert status == 1
    assert found[-1]["check"] == "probe" and "loading torch_remote" in found[-1]["text"]
