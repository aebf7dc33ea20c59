"""Command lines that are wrong: exit statuses, and words that say what to write instead."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from helpers import DEADLINE, serving

from torch_remote import _running
from torch_remote.providers import Endpoint, Spec, ssh_errors
from torch_remote_cli import checks_local, dispatch, machine, server_program
from torch_remote_cli.commands import completion
from torch_remote_cli.commands import run as run_command
from torch_remote_cli.errors import CommandError
from torch_remote_cli.troubles import Trouble, trouble_of

pytestmark = pytest.mark.slow

Run = Callable[..., tuple[int, str]]
TOKEN = "0123456789abcdef" * 4


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Runs a command in this process. Returns its exit status and what it printed."""
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    for name in ("TORCH_REMOTE", "TORCH_REMOTE_TOKEN_FILE", "TORCH_REMOTE_METRICS"):
        monkeypatch.delenv(name, raising=False)

    def command(*arguments: str) -> tuple[int, str]:
        try:
            status = dispatch.main(list(arguments))
        except SystemExit as end:
            status = int(str(end.code))
        said = capfd.readouterr()
        assert "Traceback" not in said.err
        return status, said.out + said.err

    return command


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The command lines that `run` would have become."""
    lines: list[list[str]] = []

    def execve(program: str, words: list[str], environment: dict[str, str]) -> NoReturn:
        lines.append(words[1:])
        raise SystemExit(0)

    monkeypatch.setattr(os, "execve", execve)
    return lines


# --- serve


def serve(*arguments: str, **variables: str) -> tuple[int, str]:
    program = server_program.find()
    assert program is not None
    done = subprocess.run(
        [program, *arguments], capture_output=True, text=True, timeout=DEADLINE, check=False,
        env={**os.environ, **variables},
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--device", "tpu"], "use auto, cpu, cuda or cuda:n"),
        (["--device", "cuda:x"], "use auto, cpu, cuda or cuda:n"),
        (["--metrics", "tcp://127.0.0.1:0"], "on a Unix socket only"),
        (["--metrics", "nonsense"], "on a Unix socket only; write unix:///path"),
        (["--metrics", "http://x"], "on a Unix socket only; write unix:///path"),
        (["--metrics", "tcp://"], "on a Unix socket only; write unix:///path"),
        (["--metrics", "unix://x"], "on a Unix socket only; write unix:///path"),
        (["--stdio"], "give one of --listen URL and --stdio"),
    ],
)
def test_serve_takes_what_is_wrong_on_every_machine_for_wrong_usage(
    arguments: list[str], words: str, tmp_path: Path
) -> None:
    status, said = serve("--listen", f"unix://{tmp_path}/s", *arguments)
    assert (status, words in said) == (2, True), said
    assert "--session-fd" not in said


@pytest.mark.parametrize("option", ["--token-file", "--idle-timeout", "--metrics", "--max-memory"])
def test_serve_with_an_empty_value_is_wrong_usage(option: str, run: Run, tmp_path: Path) -> None:
    for words in ([option, ""], [f"{option}="]):
        status, said = run("serve", "--listen", f"unix://{tmp_path}/s", *words)
        assert (status, said) == (2, f"torch-remote serve: the value of {option} is empty\n")


def test_serve_resumes_over_stdio_only(run: Run, tmp_path: Path) -> None:
    status, said = run("serve", "--listen", f"unix://{tmp_path}/s", "--resume")
    assert (status, said) == (2, "torch-remote serve: --resume is for --stdio\n")


def test_serve_without_a_way_to_listen_offers_the_two_that_users_have() -> None:
    status, said = serve()
    assert status == 2 and "--listen" in said and "--session-fd" not in said
    assert "--session-fd" not in serve("--help")[1]


def test_serve_that_cannot_listen_says_so_first(tmp_path: Path) -> None:
    for url in (f"unix://{tmp_path}/missing/s", "tls://192.0.2.1:4711"):
        token = ["--token-file", f"{tmp_path}/token"] if url.startswith("tls") else []
        status, said = serve("--listen", url, *token, XDG_STATE_HOME=str(tmp_path))
        assert status == 1
        assert f"torch-remote serve: cannot listen on {url}: " in said, said


def test_ctrl_c_and_sigterm_end_serve_and_page_with_0(tmp_path: Path) -> None:
    metrics = f"unix://{tmp_path}/m"
    commands = (
        ["serve", "--listen", f"unix://{tmp_path}/s", "--metrics", metrics],
        ["page", "--metrics", metrics, "--listen", "127.0.0.1:0"],
    )
    for command in commands:
        for number in (signal.SIGINT, signal.SIGTERM):
            line = [sys.executable, "-m", "torch_remote_cli", *command]
            with subprocess.Popen(
                line, stdout=subprocess.PIPE, text=True, env={**os.environ, "HOME": str(tmp_path)}
            ) as process:
                assert process.stdout is not None and " on " in process.stdout.readline()
                process.send_signal(number)
                assert process.wait(DEADLINE) == 0, (command, number)
    documented = (Path(__file__).parents[2] / "docs/command_line.md").read_text()
    assert "`serve` and `page`: ended by Ctrl-C" in documented


# --- page, top, up, ps


@pytest.mark.parametrize("port", ["99999", "-1", "x", ""])
def test_a_port_that_is_none_is_told_as_that(port: str, run: Run) -> None:
    status, said = run("page", "--metrics", "unix:///x", "--listen", f"127.0.0.1:{port}")
    assert status == 2 and "encrypted" not in said
    assert "65535" in said or "127.0.0.1:PORT" in said


def test_the_page_is_on_loopback_only(run: Run) -> None:
    status, said = run("page", "--metrics", "unix:///x", "--listen", "0.0.0.0:4712")
    assert status == 2 and "not encrypted" in said


@pytest.mark.parametrize(
    "options", [["--count", "-1"], ["--count", "0"], ["--interval", "nan"], ["--interval", "-1"]]
)
def test_top_refuses_numbers_that_cannot_be_meant(options: list[str], run: Run) -> None:
    status, said = run("top", "--metrics", "unix:///x", *options)
    assert status == 2 and options[0] in said


def test_up_of_the_embedded_server_says_that_it_needs_none(run: Run) -> None:
    status, said = run("up", "local")
    assert status == 2 and "local needs no `up`" in said and "runs already" not in said


def test_ps_of_nothing(run: Run) -> None:
    assert run("ps") == (0, "no machines are running\n")


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["run", "--on", "", "x.py"], "--on"),
        (["run", "--token-file", "", "x.py"], "--token-file"),
        (["status", "--on", ""], "--on"),
        (["status", "--metrics", ""], "--metrics"),
        (["top", "--metrics", ""], "--metrics"),
        (["bench", ""], "URL"),
        (["doctor", "--on", ""], "--on"),
        (["doctor", "--metrics", ""], "--metrics"),
        (["page", "--listen", ""], "--listen"),
        (["page", "--metrics", "unix:///x", "--host", ""], "--host"),
        (["page", "--metrics", "unix:///x", "--token-file", ""], "--token-file"),
        (["up", "modal://H100", "--name", ""], "--name"),
        (["down", ""], "NAME"),
        (["down", "box", ""], "NAME"),
        (["logs", ""], "NAME"),
    ],
    ids=" ".join,
)
def test_an_empty_value_is_wrong_usage(words: list[str], option: str, run: Run) -> None:
    status, said = run(*words)
    assert status == 2
    assert option in said.splitlines()[-1] and said.endswith(" is empty\n")


@pytest.mark.parametrize("name", ["a b", "http://box", "box:4712", "me@box"])
def test_page_refuses_what_is_no_name_of_a_host(name: str, run: Run) -> None:
    status, said = run("page", "--metrics", "unix:///x", "--host", name)
    assert status == 2 and f"--host {name}: write a name" in said


def test_doctor_refuses_what_is_no_metrics_socket(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, said = run("doctor", "--metrics", "tcp://127.0.0.1:1")
    assert status == 2 and "is no metrics socket" in said
    monkeypatch.setenv("TORCH_REMOTE_METRICS", "tcp://127.0.0.1:1")
    (found,) = checks_local.check_metrics(None)
    assert found.state == "problem" and "TORCH_REMOTE_METRICS" in found.remedy


# --- token files: who has to act


def test_a_token_file_that_cannot_be_used_is_no_refusal_of_the_server(
    run: Run, executed: list[list[str]], tmp_path: Path
) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    script = tmp_path / "script.py"
    script.touch()
    with serving(f"unix://{tmp_path}/s") as url:
        for name in ("missing", "empty", "binary", ""):
            path = str(tmp_path / name)
            for command in (["status", "--on", url], ["bench", url], ["run", "--on", url]):
                words = [str(script)] if command[0] == "run" else []
                status, said = run(*command, "--token-file", path, *words)
                assert (status, path in said) == (1, True), (command, name, said)
                assert f"torch-remote {command[0]}: --token-file: " in said
    assert executed == []


def test_a_token_that_the_server_refuses_names_the_option_of_the_command(
    run: Run, executed: list[list[str]], tmp_path: Path
) -> None:
    script = ["-c", "print('began')"]
    wrong = tmp_path / "wrong"
    wrong.write_text(TOKEN)
    wrong.chmod(0o600)
    with serving("tcp://127.0.0.1:0", "--token-file", f"{tmp_path}/right") as url:
        for options in ([], ["--token-file", str(wrong)]):
            for command, words in (("status", []), ("bench", []), ("run", script)):
                status, said = run(command, "--on", url, "-q", *options, *words)
                assert status == 4, said
                assert "--token-file FILE" in said and "connect(" not in said
        assert executed == []
        run("run", "--on", url, "-q", "--token-file", f"{tmp_path}/right", *script)
        assert executed == [script]
    with serving(f"unix://{tmp_path}/s") as url:
        for command, words in (("bench", []), ("run", script)):
            status, said = run(command, "--on", url, "-q", "--token-file", str(wrong), *words)
            assert status == 4 and "leave out --token-file" in said
    assert executed == [script]


def test_an_empty_token_file_is_told_with_what_to_put_there(run: Run, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    remedy = "put the server's token there, or name another file by --token-file"
    status, said = run("status", "--on", f"unix://{tmp_path}/s", "--token-file", str(empty))
    assert status == 1 and f"there is no token in {empty}. What to do: {remedy}" in said
    for text in ("token_file", "TORCH_REMOTE_TOKEN_FILE"):
        for error in (ValueError, RuntimeError):
            trouble = trouble_of(error(f"{text}: there is no token in {empty}"))
            assert (trouble.remedy, trouble.status) == (remedy, 1)


@pytest.fixture
def token_pipe() -> Iterator[tuple[str, int]]:
    """A pipe that holds a token, as `--token-file <(cat token)` names it, and its descriptor."""
    read, write = os.pipe()
    os.write(write, TOKEN.encode())
    os.close(write)
    yield f"/dev/fd/{read}", read
    os.close(read)


def test_a_token_may_come_from_a_pipe(
    token_pipe: tuple[str, int], run: Run, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    with serving(f"unix://{tmp_path}/s", "--token-file", str(token)) as url:
        status, said = run("status", "-q", "--on", url, "--token-file", token_pipe[0])
    assert status == 0, said


def test_run_says_that_its_token_cannot_come_from_a_pipe(
    token_pipe: tuple[str, int],
    run: Run,
    executed: list[list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = ["run", "-q", "--on", f"unix://{tmp_path}/s"]
    path, read = token_pipe
    for option, given in (
        ("--token-file", ["--token-file", path]),
        ("TORCH_REMOTE_TOKEN_FILE", []),
    ):
        status, said = run(*words, *given, "-c", "1")
        assert (status, executed) == (2, []), said
        assert said.startswith(f"torch-remote run: {option}: {path} is not a regular file")
        assert said.count("\n") == 1
        monkeypatch.setenv("TORCH_REMOTE_TOKEN_FILE", path)
    assert os.read(read, 100) == TOKEN.encode()


def test_only_machines_that_use_the_tokens_variable_need_its_file(
    run: Run, executed: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _running.note(Spec("k8s", "k8s://pod", name="box"), Endpoint("k8s://pod"))
    missing = f"{tmp_path}/missing"
    monkeypatch.setenv("TORCH_REMOTE_TOKEN_FILE", missing)
    for url in ("ssh://host", "box", "local"):
        executed.clear()
        run("run", "-q", "--on", url, "-c", "1")
        assert executed == [["-c", "1"]], url
        executed.clear()
        status, said = run("run", "-q", "--on", url, "--token-file", missing, "-c", "1")
        assert (status, executed) == (1, []) and missing in said, url
    status, said = run("run", "-q", "--on", f"unix://{tmp_path}/s", "-c", "1")
    assert (status, executed) == (1, [])
    assert f"TORCH_REMOTE_TOKEN_FILE: cannot read {missing}" in said


@pytest.mark.parametrize("command", ["status", "bench"])
def test_help_lists_the_status_of_a_token_file_that_cannot_be_used(command: str, run: Run) -> None:
    assert "1 the token file cannot be used" in run(command, "--help")[1]


def test_advice_follows_one_full_stop(run: Run) -> None:
    for url in ("nosuch://x", "tcp://127.0.0.1"):
        status, said = run("status", "-q", "--on", url)
        assert status == 2 and ". What to do: correct it" in said
        assert ".. " not in said
    assert trouble_of(ValueError("a sentence.")).sentence().startswith("a sentence. What to do: ")
    assert Trouble("a sentence.", "", 1).sentence() == "a sentence."
    denied = ssh_errors.explain("box", "", "me@box: Permission denied (publickey).\n")
    assert "(publickey). What to do: `ssh box` must work" in denied


# --- the server, as commands name it


@pytest.mark.parametrize("command", ["status", "bench", "doctor"])
def test_commands_take_the_server_alone_and_with_on(command: str, run: Run, tmp_path: Path) -> None:
    url = f"unix://{tmp_path}/nobody"
    said = [run(command, "-q", *words) for words in ([url], ["--on", url])]
    assert said[0] == said[1]
    assert said[0][0] == (1 if command == "doctor" else 3) and url in said[0][1]
    assert run(command, url, "--on", url) == (
        2,
        f"torch-remote {command}: name the server once: URL or --on URL\n",
    )


# --- run


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-c", "print(1)", "a", "--b"], ["-c", "print(1)", "a", "--b"]),
        (["-cprint(1)", "a"], ["-c", "print(1)", "a"]),
        (["-q", "-c", "-1"], ["-c", "-1"]),
        (["-", "a", "-c"], ["-", "a", "-c"]),
        (["-m", "package.train", "-c", "x"], ["-m", "package.train", "-c", "x"]),
        (["-c", ""], ["-c", ""]),
        (["--", __file__, "", "--b"], [__file__, "", "--b"]),
    ],
)
def test_run_takes_code_and_standard_input_as_python_does(
    arguments: list[str], words: list[str], run: Run, executed: list[list[str]]
) -> None:
    run("run", "--on", "local", *arguments)
    assert executed == [words]


def test_run_without_code_or_script_is_wrong_usage(run: Run, executed: list[list[str]]) -> None:
    for words in (["-c"], ["-m"], [], ["--"], [""], ["-m", ""]):
        status, said = run("run", *words)
        assert status == 2 and "which script?" in said, words
    assert executed == []


def test_code_and_standard_input_run_on_the_machine() -> None:
    code = "import sys, torch; print(torch.ones(2, device='cuda').device, sys.argv)"
    command = [sys.executable, "-m", "torch_remote_cli", "run", "-q"]
    for words, source, expected in (
        (["-c", code, "a"], "", "remote:0 ['-c', 'a']\n"),
        (["-", "a"], code, "remote:0 ['-', 'a']\n"),
    ):
        done = subprocess.run(
            [*command, *words], input=source, capture_output=True, text=True, timeout=DEADLINE,
            check=False, env={**os.environ, "TORCHDEVICE_LOG_LEVEL": "ERROR"},
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (0, expected), done.stderr


@pytest.mark.parametrize(
    "url",
    [
        "ssh://",
        "ssh://-oProxyCommand=x",
        "ssh://box?timeout=soon",
        "ssh://box?nonsense=1",
        "nonsense://box",
        "modal://GTX1080",
        "ray://head:6379?nonsense=1",
        "tcp://127.0.0.1",
        "tcp://127.0.0.1:99999",
        "tls://127.0.0.1:1?pin=short",
        "tls://127.0.0.1:1?nonsense=1",
        "unix://relative",
    ],
)
def test_run_refuses_a_url_before_the_script_begins(
    url: str, run: Run, executed: list[list[str]]
) -> None:
    status, said = run("run", "-q", "--on", url, "-c", "print('began')")
    assert (status, executed) == (2, []), said
    assert said.startswith("torch-remote run: ")


def test_the_check_of_an_ssh_url_needs_no_torch() -> None:
    code = (
        "import sys; from torch_remote_cli import main\n"
        "assert main(['run', '--on', 'ssh://', '-c', '1']) == 2\n"
        "print(sorted({'torch', 'torch_remote'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stdout + done.stderr


def test_names_of_launched_machines_can_be_used_and_completed(
    run: Run, executed: list[list[str]], tmp_path: Path
) -> None:
    for name in ("box", "box2"):
        _running.note(Spec("k8s", "k8s://pod", name=name), Endpoint("k8s://pod"))
    machine.check_url("box")
    run("run", "-q", "--on", "box", "-c", "1")
    assert executed == [["-c", "1"]]
    assert run("run", "--on", "bo", "-c", "1")[0] == 2
    script = tmp_path / "script"
    script.write_text(completion.bash())
    for command in completion.NAMED:
        line = (
            f"source {script}; COMP_WORDS=(torch-remote {command} bo); COMP_CWORD=2; "
            '_torch_remote; echo "${COMPREPLY[@]}"'
        )
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["box", "box2"]
    assert "_torch_remote_machines" in completion.zsh()
    assert completion.fish().count("__torch_remote_machines") == 3


@pytest.mark.parametrize("word", ["python", "python3.12", "/usr/bin/python3", sys.executable])
def test_run_says_to_leave_the_interpreter_out(
    run: Run, executed: list[list[str]], word: str
) -> None:
    status, said = run("run", word, "train.py", "--name", "a b")
    assert (status, executed) == (2, [])
    assert f"leave `{word}` out: `torch-remote run train.py --name 'a b'`" in said


@pytest.mark.parametrize(
    ("head", "is_python"),
    [
        ("#!/opt/venv/bin/python3.11\n", True),
        ("#!/usr/bin/env python\n", True),
        ("#!/usr/bin/env -S A=1 python3 -u\n", True),
        ("#!/bin/sh\n'''exec' \"/a long path/python3\" \"$0\" \"$@\"\n' '''\n", True),
        ("#!/bin/sh\nexec python train.py\n", False),
        ("#!/bin/bash\n# starts python\n", False),
        ("#!/opt/python/bin/perl\n", False),
        ("\x7fELF /usr/bin/python", False),
        ("#!\n", False),
        ("", False),
    ],
)
def test_run_reads_the_line_that_names_the_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: str, is_python: bool
) -> None:
    program = tmp_path / "trainer"
    program.write_text(head)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    if is_python:
        assert run_command.program("trainer") == str(program)
    else:
        with pytest.raises(CommandError, match="is no Python script"):
            run_command.program("trainer")


# --- completion


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_all_commands_and_their_options(
    shell: str, run: Run, tmp_path: Path
) -> None:
    status, text = run("completion", shell)
    assert status == 0
    options = ("--metrics", "--token-file", "--listen", "--idle-timeout", "--gpu")
    if shell == "fish":
        options = tuple(f"-l {option[2:]}" for option in options)
    assert all(word in text for word in (*dispatch.COMMANDS, *options))
    if program := shutil.which(shell):
        script = tmp_path / "script"
        script.write_text(text)
        subprocess.run([program, "-n", script], check=True, timeout=DEADLINE)


def test_bash_completes_a_command_and_an_option(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(run("completion", "bash")[1])
    for words, at, expected in (
        ("torch-remote doc", 1, "doctor"),
        ("torch-remote doctor --me", 2, "--metrics"),
    ):
        line = (
            f"source {script}; COMP_WORDS=({words}); COMP_CWORD={at}; _torch_remote; "
            'printf "%s\\n" "${COMPREPLY[@]}"'
        )
        done = subprocess.run(
            ["bash", "-c", line], capture_output=True, text=True, check=True, timeout=DEADLINE
        )
        assert done.stdout.split() == [expected]
