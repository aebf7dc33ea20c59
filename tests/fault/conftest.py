"""What the fault tests share: helpers of the Python tests, a server, the digest of an uncut run."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "python"))

import latencies
from helpers import serving
from training import train

import torch_remote

# Tests send this signal to themselves and others; a background job may ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of `pytest -n` sends its latencies to the process that prints the summary."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["latencies"] = latencies.noted()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    latencies.add(getattr(node, "workeroutput", {}).get("latencies", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in latencies.report():
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One server for all tests, on a Unix socket."""
    with serving(f"unix://{tmp_path_factory.mktemp('server')}/s") as url:
        yield url


@pytest.fixture(scope="session")
def server_pid(server: str) -> int:
    """The listener's process."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if server.encode() in words and b"torch_remote_cli" not in words:
                parents[int(folder.name)] = int(
                    (folder / "stat").read_text().rsplit(")")[-1].split()[1]
                )
    (listener,) = [pid for pid, parent in parents.items() if parent not in parents]
    return listener


@pytest.fixture(scope="session")
def uncut(server: str) -> dict[int, tuple[int, str]]:
    """The digests of runs on a good network, by number of steps."""
    results = {}
    for steps in (30, 100):
        with torch_remote.connect(server) as machine:
            results[steps] = train(machine.devices[0], steps)
    return results
