"""The command `torch-remote`, which `python -m torch_remote` is too."""

from __future__ import annotations

import json
import os
import pty
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import DEADLINE, serving, wait_until, without_waits

import torch_remote
from torch_remote_cli import dispatch, environment, figures
from torch_remote_cli.commands import bench

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
READING = ("status", "top", "bench", "doctor", "up", "ps")


def run(module: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=DEADLINE, check=False,
        env={**os.environ, **variables},
    )  # fmt: skip
    done.stderr = without_waits(done.stderr)
    return done


def cli(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run("torch_remote_cli", *arguments, **variables)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The URLs of a server and of its metrics."""
    folder = tmp_path_factory.mktemp("server")
    metrics = f"unix://{folder}/m"
    with serving(f"unix://{folder}/s", "--metrics", metrics) as url:
        yield url, metrics


# --- the command itself


@pytest.mark.parametrize(
    "arguments", [[], ["--help"], ["--version"], ["serve", "--help"], ["no-such-command"]]
)
def test_the_package_runs_as_the_command_does(arguments: list[str]) -> None:
    done, command = run("torch_remote", *arguments), cli(*arguments)
    assert (done.returncode, done.stdout, done.stderr) == (
        command.returncode,
        command.stdout,
        command.stderr,
    )


def test_the_bare_command_prints_help_that_lists_every_command() -> None:
    done = cli()
    assert done.returncode == 0
    assert done.stdout.startswith("usage: torch-remote COMMAND")
    assert all(f"  {name} " in done.stdout for name in dispatch.COMMANDS)


def test_an_unknown_command_is_wrong_usage() -> None:
    done = cli("no-such-command")
    assert (done.returncode, done.stdout) == (2, "")
    assert "'no-such-command'" in done.stderr


@pytest.mark.parametrize("command", [name for name in dispatch.COMMANDS if name != "serve"])
def test_the_help_of_each_command_has_examples_and_exit_statuses(command: str) -> None:
    done = cli(command, "--help")
    assert done.returncode == 0
    assert "examples:" in done.stdout and "exit status: " in done.stdout
    assert ("--json" in done.stdout) == (command in READING)
    assert cli(command, "--no-such-option").returncode == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["status", "--help"],
        ["doctor", "--help"],
        ["status", "--on", "no-such-name"],
        ["status", "--on", ""],
    ],
)
def test_help_and_a_wrong_name_import_neither_torch_nor_the_package(arguments: list[str]) -> None:
    code = (
        "import sys; from torch_remote_cli import main\n"
        "try: status = main(sys.argv[1:])\n"
        "except SystemExit as end: status = end.code\n"
        "assert status == 2 * ('--on' in sys.argv), status\n"
        "print(sorted({'torch', 'torch_remote', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    assert done.stdout.endswith("[]\n"), done.stdout + done.stderr


def test_the_package_serves(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch_remote", "serve", "--listen", f"unix://{tmp_path}/s"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == f"listening on unix://{tmp_path}/s\n"
            torch_remote.connect(f"unix://{tmp_path}/s").stop()
        finally:
            server.terminate()


def test_a_closed_pipe_ends_a_command_quietly(server: tuple[str, str]) -> None:
    line = f"{sys.executable} -m torch_remote_cli status --json --metrics {server[1]} | true"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_documented_variable_is_known_to_doctor() -> None:
    documented = set(
        re.findall(r"^\| `(TORCH_REMOTE\w*)`", (ROOT / "docs/settings.md").read_text(), re.M)
    )
    assert len(documented) > 10
    assert documented <= environment.KNOWN


# --- status


def test_status_tells_sessions_memory_calls_and_the_slowest_operators(
    server: tuple[str, str],
) -> None:
    url, metrics = server
    with torch_remote.connect(url) as machine:
        x = torch.ones(1000, 1000, device=machine.devices[0])
        for _ in range(3):
            (x @ x).sum().item()
        id = machine.status()["session"]

        def told() -> dict[str, Any]:
            done = cli("status", "--metrics", metrics, "--json")
            assert (done.returncode, done.stderr) == (0, "")
            return dict(json.loads(done.stdout))

        assert wait_until(lambda: told()["sessions"][0]["answers"] >= 3)
        figures = told()
        (session,) = figures["sessions"]
        assert session["id"] == id and session["pid"] == int(machine.status()["pid"])
        assert f"pid {os.getpid()}" in session["peer"]
        assert session["memory"] >= 4_000_000 and session["device_memory"] > 0
        assert session["calls"] >= 6 and session["received_bytes"] > 0
        assert figures["torch"].split("+")[0] == torch.__version__.split("+")[0]
        slowest = figures["operators"][0]
        assert slowest["name"] in ("aten::mm", "aten::fill_.Scalar", "aten::ones")
        (mm,) = [one for one in figures["operators"] if one["name"] == "aten::mm"]
        assert mm["calls"] == 3 and mm["seconds"] > 0
        text = cli("status", "--metrics", metrics).stdout
        assert id in text and "aten::mm" in text
    assert wait_until(lambda: told()["sessions"] == [])
    kept = [one for one in told()["operators"] if one["name"] == "aten::mm"]
    assert kept and kept[0]["calls"] == 3, "the operators of a session that ended are counted"


def test_status_of_a_url_tells_devices_versions_and_the_round_trip(server: tuple[str, str]) -> None:
    done = cli("status", "--on", server[0], "--json", "-q")
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert told["devices"][0]["kind"] == "cpu"
    assert 0 < told["round_trip_seconds"] < 10
    assert told["torch"]["here"] == torch.__version__


@pytest.mark.parametrize("command", ["status", "top", "page"])
def test_a_metrics_socket_that_is_not_there_says_how_to_make_one(
    command: str, tmp_path: Path
) -> None:
    places = {"XDG_RUNTIME_DIR": str(tmp_path), "TORCH_REMOTE_METRICS": ""}
    done = cli(command, **places)
    if not Path("/run/torch-remote/metrics.sock").exists():
        assert done.returncode == 3
        assert "--metrics unix:///path" in done.stderr
    assert cli(command, "--metrics", "tcp://127.0.0.1:1", **places).returncode == 2


def test_a_metrics_socket_whose_server_has_ended_is_named(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as ended:
        ended.bind(f"{tmp_path}/m")
    done = cli("status", TORCH_REMOTE_METRICS=f"unix://{tmp_path}/m")
    assert done.returncode == 3
    assert "nobody listens" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_socket_that_sends_something_else_is_one_line(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(f"{tmp_path}/m")
        door.listen()
        command = [sys.executable, "-m", "torch_remote_cli", "status", "--metrics"]
        with subprocess.Popen(
            [*command, f"unix://{tmp_path}/m"], stderr=subprocess.PIPE, text=True
        ) as status:
            with door.accept()[0] as client:
                client.sendall(b'torch_remote_info{pid="x"} 1\n')
            errors = status.communicate(timeout=DEADLINE)[1]
    assert status.returncode == 1
    assert "not the figures of a server" in errors and "Traceback" not in errors


def test_figures_with_odd_labels_and_a_cut_line_are_read() -> None:
    text = (
        'torch_remote_session_info{session="ab",pid="3",peer="a \\"b\\" \\\\ c",device="x",'
        'devices="1"} 1\n'
        'torch_remote_memory_bytes{session="ab"} 12\n'
        'torch_remote_unknown{session="ab"} 1\n'
        'torch_remote_calls_total{session="ab'
    )
    (session,) = figures.parse(text).sessions
    assert (session.peer, session.memory, session.calls) == ('a "b" \\ c', 12, 0)


# --- top


def test_top_tells_rates(server: tuple[str, str]) -> None:
    url, metrics = server
    with torch_remote.connect(url) as machine:
        x = torch.ones(3, device=machine.devices[0])
        command = [sys.executable, "-m", "torch_remote_cli", "top", "--metrics", metrics]
        command += ["--json", "--count", "2", "--interval", "0.5"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as top:
            while top.poll() is None:
                x.add_(1)
                x.sum().item()
            assert top.stdout is not None
            lines = [json.loads(line) for line in top.stdout]
    assert len(lines) == 2
    (session,) = lines[-1]["sessions"]
    assert session["per_second"]["calls"] > 0 and session["per_second"]["answers"] > 0
    assert {one["name"] for one in lines[-1]["operators"]} >= {"aten::add_.Tensor", "aten::sum"}


def test_top_fills_a_terminal_and_q_ends_it(server: tuple[str, str]) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "torch_remote_cli", "top", "--metrics", server[1]]
    top = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    while b"calls/s" not in shown:
        shown += os.read(ours, 65536)
    os.write(ours, b"q")
    try:
        while part := os.read(ours, 65536):
            shown += part
    except OSError:  # the terminal's other end is closed
        pass
    assert top.wait(DEADLINE) == 0
    os.close(ours)
    assert b"\x1b[?1049h" in shown and shown.rstrip().endswith(b"\x1b[?1049l")


# --- run


def test_run_runs_a_script_on_the_server_as_python_would(
    server: tuple[str, str], tmp_path: Path
) -> None:
    (tmp_path / "beside.py").write_text("WORD = 'beside'\n")
    (tmp_path / "script.py").write_text(
        "import sys, subprocess, beside, torch\n"
        "import torch_remote\n"
        "x = torch.ones(2, device='cuda')\n"
        "print(x.device, torch.ones(2).device, sys.argv[1:], beside.WORD, __name__, flush=True)\n"
        "print(torch_remote.machines()[0].status()['url'], flush=True)\n"
        "child = 'import torch; print(torch.ones(2).device)'\n"
        "subprocess.run([sys.executable, '-c', child], check=True)\n"
        "sys.exit(7)\n"
    )
    done = cli("run", "--on", server[0], str(tmp_path / "script.py"), "--epochs", "3", "-q")
    assert done.returncode == 7, done.stderr
    assert done.stdout.splitlines() == [
        "remote:0 cpu ['--epochs', '3', '-q'] beside __main__",
        server[0],
        "cpu",  # in a child too, what names no device stays
    ]


def test_run_says_which_lines_waited(server: tuple[str, str], tmp_path: Path) -> None:
    script = tmp_path / "waits.py"
    script.write_text(
        'import torch\nx = torch.ones(2, device="cuda")\nfor _ in range(5):\n    x.sum().item()\n'
    )
    done = cli("run", "--waits", "--on", server[0], str(script))
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "waits.py:4" in line]
    assert line.split()[1] == "5"


def test_run_without_a_script_or_with_one_that_is_missing_says_so() -> None:
    assert cli("run").returncode == 2
    done = cli("run", "/no/such/script.py")
    assert done.returncode == 1
    assert "there is no file /no/such/script.py" in done.stderr


def test_run_on_a_server_that_is_not_there_does_not_begin_the_script(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "script.py"
    script.write_text("print('began')\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for url, status, words in (
        ("foo", 2, "'foo' is neither a URL nor a machine"),
        (f"unix://{tmp_path}/nobody", 3, "What to do: start a server there"),
        ("tcp://127.0.0.1:1", 3, "What to do: start a server there"),
    ):
        assert dispatch.main(["run", "--on", url, str(script)]) == status
        said = capfd.readouterr()
        assert words in said.err and "began" not in said.out


def test_run_tells_the_script_the_name_it_was_written_for(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "device = 'mps' if torch.backends.mps.is_available() else 'cuda'\n"
        "print(torch.ones(2, device=device).device, torch.cuda.is_available())\n"
    )
    for name, expected in (("mps", "mps:0 False\n"), ("cuda", "cuda:0 True\n")):
        done = cli("run", "--as", name, str(script))
        assert (done.returncode, done.stdout) == (0, expected), done.stderr
    with pytest.raises(SystemExit) as ended:
        dispatch.main(["run", "--as", "xpu", str(script)])
    assert ended.value.code == 2
    assert "'cuda', 'mps'" in capfd.readouterr().err
    monkeypatch.setenv("TORCHDEVICE_READ_AS", "xpu")
    assert dispatch.main(["run", str(script)]) == 2
    assert "TORCHDEVICE_READ_AS is xpu; it may be cuda or mps" in capfd.readouterr().err


# --- bench


def test_bench_measures_and_says_what_it_means(server: tuple[str, str]) -> None:
    done = cli("bench", server[0], "--json", "-q")
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    for figure in ("round_trip_seconds", "calls_per_second", "upload_bytes_per_second"):
        assert told[figure] > 0
    assert any("training step" in sentence for sentence in told["meaning"])


def test_bench_measures_with_the_memory_that_the_server_has(tmp_path: Path) -> None:
    figures = ("upload_bytes_per_second", "download_bytes_per_second")
    for limit, is_enough in (("8MiB", True), ("1MiB", False)):
        with serving(f"unix://{tmp_path}/{limit}", "--max-memory", limit) as url:
            done = cli("bench", url, "--json", "-q")
        assert (done.returncode, done.stderr) == (0, "")
        told = json.loads(done.stdout)
        assert told["round_trip_seconds"] > 0 and told["calls_per_second"] > 0
        assert [told[each] is not None for each in figures] == [is_enough] * 2
        assert any("not measured" in each for each in told["meaning"]) is not is_enough
        assert ("upload" in bench.describe(told).partition("\n\n")[0]) is is_enough


def test_bench_of_nobody_is_unreachable_and_of_a_wrong_token_refused(tmp_path: Path) -> None:
    done = cli("bench", f"unix://{tmp_path}/nobody", "-q", TORCH_REMOTE_PATIENCE="0")
    assert done.returncode == 3
    assert done.stderr.startswith("torch-remote bench: ") and "Traceback" not in done.stderr
    (tmp_path / "wrong").write_text("0" * 64)
    with serving("tcp://127.0.0.1:0", "--token-file", f"{tmp_path}/right") as url:
        done = cli("bench", url, "--token-file", f"{tmp_path}/wrong", "-q")
    assert done.returncode == 4, done.stderr
