"""Runs the programs of tests in forks of a process that has imported torch: the import takes longer
than most of them.

Started as a script with the number of a socket. A request there has the program, its environment
and its folder, with two descriptors, its stdout and stderr. The answers are the number of the
process, and when it has ended, its status.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

# Read by our packages only, so after the fork; all others may be read while torch is imported.
READ_LATE = ("TORCH_REMOTE", "TORCHDEVICE")
READ_WITH_TORCH = "TORCH_REMOTE_AUTOLOAD"

REQUEST_BYTES = 1 << 20


def may_fork(environment: dict[str, str]) -> bool:
    """Whether a program with these variables can do without an import of its own."""
    return all(name.startswith(READ_LATE) and name != READ_WITH_TORCH for name in environment)


class Ended(NamedTuple):
    status: int
    stdout: str
    stderr: str


class TorchForks:
    """The process that forks, seen from the tests. Started at the first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None

    def _connected(self) -> socket.socket:
        if self._socket is None:
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            theirs.close()
        return self._socket

    def run(self, code: str, environment: dict[str, str], timeout: float) -> Ended:
        """As subprocess.run(): returns when nobody has the program's stdout and stderr open."""
        request = {"code": code, "environment": environment, "folder": str(Path.cwd())}
        with self._lock, ThreadPoolExecutor(2) as readers:
            connected = self._connected()
            connected.settimeout(timeout)
            pipes = [os.pipe(), os.pipe()]
            socket.send_fds(connected, [json.dumps(request).encode()], [end for _, end in pipes])
            for _, end in pipes:
                os.close(end)
            texts = [readers.submit(read_whole, begin) for begin, _ in pipes]
            child = json.loads(connected.recv(REQUEST_BYTES))
            try:
                status = json.loads(connected.recv(REQUEST_BYTES))
            except TimeoutError:
                os.killpg(child, signal.SIGKILL)
                connected.recv(REQUEST_BYTES)
                raise
            return Ended(status, *(text.result(timeout) for text in texts))


def read_whole(file: int) -> str:
    with open(file) as opened:
        return opened.read()


def become(request: dict[str, Any], descriptors: list[int]) -> None:
    """What a process that is started anew would find."""
    os.setsid()
    for file, number in zip(descriptors, (1, 2), strict=True):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.argv = ["-c"]
    sys.path[0] = ""


def serve_until_forked(connected: socket.socket) -> str:
    """Returns in each child, with its program; never returns in the parent."""
    while True:
        text, descriptors, _, _ = socket.recv_fds(connected, REQUEST_BYTES, 2)
        if not text:
            os._exit(0)  # the tests have ended
        request = json.loads(text)
        child = os.fork()
        if child == 0:
            connected.close()
            become(request, descriptors)
            return str(request["code"])
        for file in descriptors:
            os.close(file)
        connected.send(json.dumps(child).encode())
        _, status = os.waitpid(child, 0)
        connected.send(json.dumps(os.waitstatus_to_exitcode(status)).encode())


if __name__ == "__main__":
    from types import ModuleType

    import torch  # noqa: F401

    program = compile(
        serve_until_forked(socket.socket(fileno=int(sys.argv[1]))), "<string>", "exec"
    )
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        exec(program, sys.modules["__main__"].__dict__)
    except Exception as error:  # as Python does, without the frame of this file
        trace = error.__traceback__.tb_next if error.__traceback__ else None
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        sys.exit(1)
