"""A program at its own terminal, where Ctrl-C can be pressed."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import textwrap
import time
from types import TracebackType

from helpers import DEADLINE

PROGRAM = """
import fcntl, json, signal, sys, termios
signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs the tests may ignore it
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
mode = termios.tcgetattr(0)
mode[3] &= ~termios.ECHO
termios.tcsetattr(0, termios.TCSANOW, mode)

def say(text):
    sys.stdout.write(text + "\\n")
    sys.stdout.flush()

for line in sys.stdin:
    exec(json.loads(line), globals())
"""


class Terminal:
    """Runs a Python program with this controlling terminal, one piece of code after the other.

    `wait_for()` waits for what the code prints with `say()`.
    """

    def __init__(self, **environment: str) -> None:
        self._ours, theirs = pty.openpty()
        self._heard = ""
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, **environment},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)

    def run(self, code: str) -> None:
        """Starts to run the code. A line of a terminal has at most 4,095 characters."""
        os.write(self._ours, json.dumps(textwrap.dedent(code)).encode() + b"\n")

    def press_control_c(self) -> None:
        os.write(self._ours, b"\x03")

    def wait_for(self, line: str) -> None:
        """Waits until the program has printed the line."""
        self.wait_for_text(f"{line}\r\n")

    def wait_for_text(self, text: str) -> None:
        """Waits until the program has printed the text."""
        end = time.monotonic() + 3 * DEADLINE  # includes importing torch
        while text not in self._heard:
            assert time.monotonic() < end, f"no {text!r} in {self._heard!r}"
            if select.select([self._ours], [], [], 0.5)[0]:
                self._heard += self._read()
        self._heard = self._heard.partition(text)[2]

    def _read(self) -> str:
        try:
            return os.read(self._ours, 4096).decode(errors="replace")
        except OSError:  # Linux reports so that the program has closed its terminal
            raise AssertionError(f"it ended, having said {self._heard!r}") from None
