"""The files under deploy/: units that systemd accepts, and a Dockerfile whose parts exist."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import DEADLINE

from torch_remote_cli import dispatch

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNITS = ("torch-remote.service", "torch-remote-page.service")


def lines_of(path: Path) -> list[str]:
    """Without comments, and with continued lines joined."""
    text = re.sub(r"^#.*\n", "", path.read_text(), flags=re.M)
    return [line for line in re.sub(r"\\\n\s*", " ", text).splitlines() if line.strip()]


def options_known_to(command: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-m", "torch_remote_cli", command, "--help"],
        capture_output=True, text=True, timeout=DEADLINE, check=True,
    )  # fmt: skip
    return set(re.findall(r"--[\w-]+", done.stdout))


def check_command(words: list[str]) -> None:
    """`words` follow the name torch-remote."""
    assert words[0] in dispatch.COMMANDS
    assert {word for word in words if word.startswith("--")} <= options_known_to(words[0])


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_starts_a_command_that_exists(name: str) -> None:
    (start,) = [line for line in lines_of(DEPLOY / name) if line.startswith("ExecStart=")]
    program, *words = shlex.split(start.removeprefix("ExecStart="))
    assert program == "/opt/torch-remote/bin/torch-remote"
    check_command(words)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
@pytest.mark.parametrize("name", UNITS)
def test_systemd_accepts_a_unit(name: str, tmp_path: Path) -> None:
    for unit in UNITS:  # the program is not installed here, nor the user
        text = (
            (DEPLOY / unit).read_text().replace("/opt/torch-remote/bin/torch-remote", "/bin/true")
        )
        (tmp_path / unit).write_text(text.replace("User=torch-remote\n", ""))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", tmp_path / name],
        capture_output=True, text=True, timeout=DEADLINE, check=False,
    )  # fmt: skip
    ours = [line for line in done.stderr.splitlines() if "torch-remote" in line]
    assert (done.returncode, ours) == (0, []), done.stderr


def test_the_dockerfile_is_well_formed_and_its_commands_exist() -> None:
    lines = lines_of(DEPLOY / "Dockerfile")
    known = {
        "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "FROM", "HEALTHCHECK", "RUN", "USER",
        "VOLUME", "WORKDIR",
    }  # fmt: skip
    words = [line.split()[0] for line in lines]
    assert set(words) <= known and words[0] == "FROM"
    stages = [line for line in lines if line.startswith("FROM ")]
    assert all(":" in line and ":latest" not in line for line in stages), "a tag is fixed"
    after_last_stage = lines[lines.index(stages[-1]) :]
    assert any(line.startswith("USER torch-remote") for line in after_last_stage), "not as root"
    for line in lines:
        if line.startswith("RUN apt-get"):
            assert "--no-install-recommends" in line and "rm -rf /var/lib/apt/lists/*" in line
        if line.startswith("RUN "):
            subprocess.run(["sh", "-n", "-c", line.removeprefix("RUN ")], check=True)
    (entry,) = [line for line in lines if line.startswith("ENTRYPOINT ")]
    assert shlex.split(entry)[1] == "[torch-remote]"
    for line in lines:
        if line.startswith("CMD ") or line.startswith("HEALTHCHECK "):
            listed = re.findall(r'"([^"]*)"', line)
            check_command(listed[1:] if listed[0] == "torch-remote" else listed)


def test_what_the_build_needs_is_what_the_readme_says() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    assert "libssl-dev" in text and "libcli11-dev" in text and "g++" in text
    setup = (ROOT / "tools/setup.sh").read_text()
    (torch_here,) = re.findall(r'^TORCH="(.+)"', setup, re.M)
    assert f"ARG TORCH={torch_here}" in text
