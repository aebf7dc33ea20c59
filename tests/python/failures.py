"""Calls that only the server can refuse, each with a new signature, so that none is waited for."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from helpers import wait_until

import torch_remote

SIZES = itertools.count(1000)  # not used in other files: a signature that failed is waited for


def bad_gather() -> torch.Tensor:
    source = torch.ones(next(SIZES), device="remote")
    return torch.gather(source, 0, torch.tensor([10**6], device="remote"))


@contextmanager
def held_server() -> Iterator[None]:
    """Stops the server's process for the block, so that the client hears of no failure in it.

    What waits for the server in the block waits for ever.
    """
    torch.ones(1, device="remote").item()
    pid = int(torch_remote.machines()[0].status()["pid"])
    os.kill(pid, signal.SIGSTOP)
    try:
        assert wait_until(lambda: _is_stopped(pid))
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _is_stopped(pid: int) -> bool:
    return all(map(_task_is_stopped, Path(f"/proc/{pid}/task").iterdir()))


def _task_is_stopped(task: Path) -> bool:
    """A task that has ended meanwhile does not run either."""
    try:
        stat = (task / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] == "T"


def hear_of_failure() -> None:
    """Waits until the client knows of a failure that no call has raised yet."""
    assert wait_until(torch_remote._C.has_failure)


def too_much(x: torch.Tensor) -> torch.Tensor:
    """More than the address space of a process; a new signature each time."""
    return x.flatten()[0].expand(2**45 + next(SIZES)).clone().sum()


def bad_index(x: torch.Tensor) -> torch.Tensor:
    index = torch.full((next(SIZES),), 7, device=x.device)
    return torch.nn.functional.embedding(index, x).sum()


def told(call: Callable[[], object]) -> torch_remote.RemoteError:
    """Makes calls until the failure is raised: the client hears of it a moment after the call."""
    with pytest.raises(torch_remote.RemoteError) as raised:
        for _ in range(100_000):
            call()
    return raised.value


def in_thread(work: Callable[[], object]) -> list[BaseException]:
    """Runs a function in a new thread. Returns what it raised."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return raised
