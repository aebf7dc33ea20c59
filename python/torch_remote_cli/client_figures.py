"""What a client knows and its server does not: which lines of the program waited, and how long.

A program that `torch-remote run` started writes it to a file once a second, for `torch-remote page`
on the same machine. Only the user can read the file. It is removed when the program ends.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any

SHOWN_LINES = 30
INTERVAL = 1.0


def folder() -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    base = Path(runtime) if runtime else Path.home() / ".cache"
    return base / "torch-remote" / "clients"


class Publisher:
    """Writes this process's figures when they have changed."""

    def __init__(self, torch_remote: ModuleType) -> None:
        self._torch_remote = torch_remote
        self._path = folder() / f"{os.getpid()}.json"
        self._started = time.time()
        self._last: dict[str, Any] = {}
        self._owner = os.getpid()

    def start(self) -> None:
        threading.Thread(target=self._run, name="tr-figures", daemon=True).start()
        atexit.register(self._remove)

    def _run(self) -> None:
        while True:
            time.sleep(INTERVAL)
            with contextlib.suppress(OSError):  # a full disk does not matter to the program
                self._write()

    def _write(self) -> None:
        counters = self._torch_remote.stats().as_dict()
        if counters == self._last:
            return
        self._last = counters
        told = {
            "pid": self._owner,
            "program": " ".join(sys.argv)[:200],
            "started": self._started,
            "counters": counters,
            "waits": [
                {"line": wait.line, "count": wait.count, "seconds": wait.seconds}
                for wait in self._torch_remote.waits_by_line()[:SHOWN_LINES]
            ],
        }
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, name = tempfile.mkstemp(dir=self._path.parent)
        with os.fdopen(handle, "w") as file:
            json.dump(told, file)
        Path(name).replace(self._path)

    def _remove(self) -> None:
        if os.getpid() == self._owner:
            self._path.unlink(missing_ok=True)


def read_all() -> list[dict[str, Any]]:
    """Of the programs that still run, the newest first."""
    told = []
    for path in folder().glob("*.json"):
        try:
            one = json.loads(path.read_text())
            os.kill(int(one["pid"]), 0)
        except ProcessLookupError:  # it was killed
            path.unlink(missing_ok=True)
        except (OSError, ValueError, KeyError, TypeError):
            continue
        else:
            told.append(one)
    return sorted(told, key=lambda one: -float(one.get("started", 0)))
