"""Plays ssh: runs a command and passes bytes on. If it is killed, the connection is lost."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

PIECE = 1 << 16


def pump(source: int, target: int) -> None:
    try:
        while data := os.read(source, PIECE):
            while data:
                data = data[os.write(target, data) :]
    except OSError:
        pass
    os._exit(0)  # the end of one direction ends the connection


def main() -> None:
    command = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert command.stdin is not None
    assert command.stdout is not None
    ends = (command.stdin.fileno(), command.stdout.fileno())
    threading.Thread(target=pump, args=(0, ends[0]), daemon=True).start()
    pump(ends[1], 1)


if __name__ == "__main__":
    main()
