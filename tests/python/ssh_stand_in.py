#!/usr/bin/env python3
"""Plays ssh for tests without an sshd: runs the command here, or fails in ssh's own words.

The host's name says what happens. PATH of the command is TEST_HOST_PATH.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

HOP = Path(__file__).resolve().parents[1] / "fault" / "hop.py"

FAILURES = {
    "unknown": "ssh: Could not resolve hostname unknown: Name or service not known",
    "denied": "me@denied: Permission denied (publickey,password).",
    "changed": "Host key verification failed.",
    "down": "ssh: connect to host down port 22: Connection timed out",
}


def main() -> None:
    words = sys.argv[1:]
    options, (host, command) = words[: words.index("--")], words[words.index("--") + 1 :]
    assert "BatchMode=yes" in options, options
    if host in FAILURES:
        print(FAILURES[host], file=sys.stderr)
        sys.exit(255)
    path = "/usr/bin:/bin" if host == "bare" else os.environ["TEST_HOST_PATH"]
    words = ["/bin/sh", "-c", command]
    if "--stdio" in command:  # as with ssh, the command outlives this process
        words = [sys.executable, str(HOP), *words]
    os.execve(words[0], words, {**os.environ, "PATH": path})


if __name__ == "__main__":
    main()
