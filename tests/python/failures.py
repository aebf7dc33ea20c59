"""Calls that only the server can refuse, each with a new signature, so that none is waited for."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

import pytest
import torch

import torch_remote

SIZES = itertools.count(1000)  # not used in other files: a signature that failed is waited for


def bad_gather() -> torch.Tensor:
    source = torch.ones(next(SIZES), device="remote")
    return torch.gather(source, 0, torch.tensor([10**6], device="remote"))


def late_gather() -> torch.Tensor:
    """The same behind work for the server: the client hears of it after it has made more calls."""
    work = torch.ones(1500, 1500, device="remote", dtype=torch.float64)
    for _ in range(4):
        work = work @ work
    return bad_gather()


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
