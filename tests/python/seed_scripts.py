"""Runs the code blocks of the documents that started the project, and the scripts they name."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from helpers import DEADLINE, run_python

ROOT = Path(__file__).resolve().parents[2]


def run_blocks(*blocks: str) -> list[str]:
    """Runs Python blocks one after the other in one process. Returns the lines they print."""
    done = run_python("\n".join(blocks))
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def run_line(line: str) -> str:
    """Runs a line of a shell block in the root, with this interpreter. Returns what it prints."""
    program, *arguments = shlex.split(line)
    words = {"python": [sys.executable], "pytest": [sys.executable, "-m", "pytest"]}[program]
    done = subprocess.run(
        [*words, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
