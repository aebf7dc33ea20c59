"""Code that has taken a session over cannot leave it: a library of attacks tries, with and without
the sandbox, so that each attempt is known to work where nothing stops it."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from helpers import DEADLINE, run_python, serving
from library.build import library

import torch_remote

REFUSED = {errno.EPERM, errno.EACCES}
MADE = f"torch-remote-test-{os.getpid()}"
TRACING = Path("/proc/sys/kernel/yama/ptrace_scope")  # may forbid what the sandbox is to forbid


@dataclass
class Attacked:
    """A session that runs an attacker's code, and what it attacks."""

    folder: Path
    device: torch.device
    neighbour: int  # a process of another session
    listener: int
    metrics: Path

    def attempt(self, what: str, path: Path | str = "", pid: int = 0) -> int:
        """The errno of the attempt; 0: it succeeded."""
        x = torch.zeros(1, device=self.device)
        return int(torch.ops.tests.attempt(x, what, str(path), pid))

    def status(self) -> dict[str, object]:
        command = [sys.executable, "-m", "torch_remote_cli", "status", "--json"]
        done = subprocess.run(
            [*command, "--metrics", f"unix://{self.metrics}"],
            capture_output=True, text=True, timeout=DEADLINE, check=True,
        )  # fmt: skip
        return dict(json.loads(done.stdout))


@contextmanager
def attacked(folder: Path, *options: str) -> Iterator[Attacked]:
    torch.ops.load_library(library())
    token, metrics = folder / "token", folder / "metrics"
    token.write_text("0" * 64)
    token.chmod(0o600)
    beside = folder / "libcustom.so"  # a library's name must not open its folder
    beside.write_bytes(Path(library()).read_bytes())
    with ExitStack() as stack:
        url = stack.enter_context(
            serving(
                "tcp://127.0.0.1:0", "--token-file", str(token), "--library", str(beside),
                "--metrics", f"unix://{metrics}", *options,
            )
        )  # fmt: skip
        machine, other = (
            stack.enter_context(torch_remote.connect(url, token_file=token)) for _ in range(2)
        )
        neighbour = int(other.status()["pid"])
        torch.zeros(1, device=other.devices[0]).sum().item()
        fields = Path(f"/proc/{neighbour}/stat").read_text().rpartition(")")[2].split()
        yield Attacked(folder, machine.devices[0], neighbour, int(fields[1]), metrics)


def on_files(victim: Attacked) -> dict[str, int]:
    """Attempts and their errnos."""
    folder, try_to = victim.folder, victim.attempt
    written, removed, loaded = (folder / name for name in ("written", "removed", "loaded.so"))
    written.write_text("kept")
    removed.write_text("kept")
    loaded.write_bytes(path_of_loaded("libm.so.6").read_bytes())
    return {
        "read the token": try_to("read", folder / "token"),
        "read the list of users": try_to("read", "/etc/passwd"),
        "read the connections of the machine": try_to("read", "/proc/self/net/tcp"),
        "read them as a thread does": try_to("read", "/proc/thread-self/net/unix"),
        "read the own environment": try_to("read", "/proc/self/environ"),
        "list a home": try_to("list", Path.home()),
        "list a folder": try_to("list", folder),
        "load a library": try_to("load", loaded),
        "write a file": try_to("write", written),
        "update a file": try_to("update", written),
        "make a file": try_to("create", folder / "made"),
        "make a file in /tmp": try_to("create", f"/tmp/{MADE}"),
        "make a file here": try_to("create", MADE),
        "remove a file": try_to("remove", removed),
        "make a folder": try_to("make folder", folder / "folder"),
        "change rights": try_to("chmod", written),
    }


def on_others(victim: Attacked) -> dict[str, int]:
    try_to = victim.attempt
    found = {
        "make a TCP socket": try_to("tcp"),
        "make a Unix socket": try_to("unix"),
        "make a pair of sockets": try_to("pair"),
        "start a program": try_to("spawn", "/bin/true"),
        "fork": try_to("fork"),
        "change namespaces": try_to("unshare"),
    }
    for name, pid in (("neighbour", victim.neighbour), ("listener", victim.listener)):
        found |= {
            f"signal the {name}": try_to("kill", pid=pid),
            f"have the kernel signal the {name}": try_to("own", pid=pid),
            f"change a limit of the {name}": try_to("limit", pid=pid),
            f"read the variables of the {name}": try_to("read", f"/proc/{pid}/environ"),
        }
        if not TRACING.exists() or TRACING.read_text().strip() == "0":
            found[f"trace the {name}"] = try_to("ptrace", pid=pid)
            found[f"write to the memory of the {name}"] = try_to("update", f"/proc/{pid}/mem")
    return found


def path_of_loaded(name: str) -> Path:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return next(Path(line[line.index("/") :]) for line in lines if line.endswith(f"/{name}"))


def states_of_threads(pid: int) -> list[dict[str, str]]:
    files = Path(f"/proc/{pid}/task").glob("*/status")
    return [dict(line.split(":\t", 1) for line in f.read_text().splitlines()) for f in files]


def assert_works(device: torch.device) -> None:
    assert torch.ones(64, 64, device=device).matmul(torch.ones(64, 64, device=device))[0, 0] == 64


# Promise 14.
def test_a_session_that_was_taken_over_cannot_leave_its_process(tmp_path: Path) -> None:
    with attacked(tmp_path) as victim:
        assert_works(victim.device)
        status = victim.status()
        if "Landlock ABI" not in str(status["sandbox"]):
            pytest.skip(f"the kernel has no Landlock: {status['sandbox']}")
        found = on_files(victim) | on_others(victim)
        found["execute a program"] = victim.attempt("execute", "/nonexistent")
        assert {what for what, error in found.items() if error not in REFUSED} == set()
        assert (tmp_path / "written").read_text() == (tmp_path / "removed").read_text() == "kept"
        assert_works(victim.device)

        assert str(status["sandbox"]).startswith("seccomp, Landlock ABI ")
        sessions = status["sessions"]
        assert isinstance(sessions, list)
        assert {session["sandbox"] for session in sessions} == {status["sandbox"]}
        for state in states_of_threads(victim.neighbour):
            assert (state["NoNewPrivs"], state["Seccomp"]) == ("1", "2")
            assert state["Name"].startswith("tr-"), state


def own_cgroup_file() -> Path | None:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, kinds, path = line.split(":", 2)
        folder = Path("/sys/fs/cgroup") / kinds / path.strip("/")
        found = [*folder.glob("memory.max"), *folder.glob("memory.limit_in_bytes")]
        if found:
            return found[0]
    return None


# Promise 14.
def test_a_session_on_the_cpu_reads_of_the_machine_what_it_computes_with(tmp_path: Path) -> None:
    with attacked(tmp_path, "--device", "cpu") as victim:
        if "Landlock ABI" not in str(victim.status()["sandbox"]):
            pytest.skip("the kernel has no Landlock")
        folders = ("/sys/class", "/sys/bus", "/sys/devices", "/sys/module", "/sys/fs/cgroup")
        found = {folder: victim.attempt("list", folder) for folder in folders}
        found["the groups of processes"] = victim.attempt("read", "/sys/fs/cgroup/cgroup.procs")
        assert {what for what, error in found.items() if error not in REFUSED} <= (
            set() if Path("/sys/fs/cgroup/cgroup.procs").exists() else {"the groups of processes"}
        )
        assert victim.attempt("read", "/sys/devices/system/cpu/online") == 0
        if (own := own_cgroup_file()) is not None:
            assert victim.attempt("read", own) == 0
        assert_works(victim.device)


# Promise 14.
def test_without_the_sandbox_each_of_these_attempts_succeeds(tmp_path: Path) -> None:
    with attacked(tmp_path, "--sandbox", "off") as victim:
        try:
            found = on_files(victim) | on_others(victim)
        finally:
            for made in (Path("/tmp") / MADE, Path(MADE)):
                made.unlink(missing_ok=True)
        found["execute a program"] = victim.attempt("execute", "/nonexistent") - errno.ENOENT
        assert {what: error for what, error in found.items() if error} == {}
        assert not (tmp_path / "removed").exists()
        assert victim.status()["sandbox"] == "off"


def test_a_server_with_peers_leaves_its_sessions_tcp(tmp_path: Path) -> None:
    with attacked(tmp_path, "--peers") as victim:
        status = victim.status()
        if "Landlock ABI" not in str(status["sandbox"]):
            pytest.skip(f"the kernel has no Landlock: {status['sandbox']}")
        assert str(status["sandbox"]).endswith("--peers: TCP connections can be opened")
        sessions = status["sessions"]
        assert isinstance(sessions, list)
        assert {session["sandbox"] for session in sessions} == {status["sandbox"]}
        found = on_files(victim) | on_others(victim)
        kept = {what for what, error in found.items() if error not in REFUSED}
        assert kept == {"make a TCP socket"}


# Promise 7e.
def test_a_server_with_files_leaves_its_sessions_these_folders_to_read(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "in").write_text("kept")
    (shared / "out").symlink_to(tmp_path / "token")
    with attacked(tmp_path, "--files", str(shared)) as victim:
        if "Landlock ABI" not in str(victim.status()["sandbox"]):
            pytest.skip("the kernel has no Landlock")
        assert victim.attempt("read", shared / "in") == 0
        assert victim.attempt("list", shared) == 0
        found = on_files(victim) | {
            "read what a link leads to": victim.attempt("read", shared / "out"),
            "write a file that is shared": victim.attempt("write", shared / "in"),
            "remove it": victim.attempt("remove", shared / "in"),
            "make one beside": victim.attempt("create", shared / "made"),
        }
        assert {what for what, error in found.items() if error not in REFUSED} == set()
        assert (shared / "in").read_text() == "kept"


PROGRAM = """
import torch, torch_remote
assert torch.ones(3, device="remote").sum().item() == 3
"""


# Promise 14.
@pytest.mark.parametrize(("chosen", "told"), [("auto", 'sandbox="'), ("off", "sandbox=off")])
def test_an_embedded_server_is_confined_too_unless_the_environment_says_off(
    chosen: str, told: str
) -> None:
    done = run_python(PROGRAM, TORCH_REMOTE_LOG="info", TORCH_REMOTE_SANDBOX=chosen)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "session begins" in line]
    assert told in line


def test_another_value_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(AssertionError, match=r"TORCH_REMOTE_SANDBOX\) perhaps: use auto, off"),
        serving(f"unix://{tmp_path}/s", "--sandbox", "perhaps"),
    ):
        pass
