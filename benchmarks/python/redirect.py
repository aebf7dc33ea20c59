"""What TorchDevice costs: hooked calls against stock ones in the same process, by turns."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch
from figure import Figure, elapsed, ratio_of_best

import torch_remote

os.environ["TORCHDEVICE_POLICY"] = "off"
os.environ["TORCHDEVICE_LOG_LEVEL"] = "ERROR"
import TorchDevice

ROUNDS = 40
CALLS = 1500

Call = Callable[[], Any]
# Name, bar, policy, the call under redirect, the stock call that does the same.
Row = tuple[str, float, str, Call, Call]


def rows() -> list[Row]:
    torch.set_num_threads(1)
    os.environ["TORCHDEVICE_ORDER"] = "remote"
    there, here = torch.ones(8, 8, device="remote"), torch.ones(8, 8)
    script_redirected, script_stock = _scripts()
    return [
        ("torch.device('cuda')", 1.0, "full",
         lambda: torch.device("cuda"), lambda: torch.device("remote")),
        ("torch.zeros(2, device='cuda')", 1.0, "full",
         lambda: torch.zeros(2, device="cuda"), lambda: torch.zeros(2, device="remote")),
        ("torch.empty(2, device='cuda')", 1.0, "full",
         lambda: torch.empty(2, device="cuda"), lambda: torch.empty(2, device="remote")),
        ("x.to('cuda')", 1.0, "full", lambda: there.to("cuda"), lambda: there.to("remote")),
        ("torch.zeros(2), no device", 1.05, "full",
         lambda: torch.zeros(2), lambda: torch.zeros(2, device="remote")),
        ("torch.empty(2), not redirected", 1.1, "foreign",
         lambda: torch.empty(2), lambda: torch.empty(2)),
        ("torch.empty(2, device='cpu'), not redirected", 1.1, "foreign",
         lambda: torch.empty(2, device="cpu"), lambda: torch.empty(2, device="cpu")),
        ("x.to(dtype), not redirected", 1.1, "full",
         lambda: here.to(torch.float32), lambda: here.to(torch.float32)),
        ("x + y", 1.05, "full", lambda: here + here, lambda: here + here),
        ("a script's zeros on cuda", 1.2, "full", script_redirected, script_stock),
    ]  # fmt: skip


def cost_of_redirected_calls() -> list[Figure]:
    return [
        Figure(f"redirect: {name}", _ratio(policy, hooked, stock), bar, unit="×")
        for name, bar, policy, hooked, stock in rows()
    ]


def _scripts() -> tuple[Call, Call]:
    source = "def f():\n    return torch.zeros([2], device=torch.device('{}'))\n"
    TorchDevice.enable("full")
    redirected = torch.jit.CompilationUnit(source.format("cuda")).f
    TorchDevice.disable()
    return redirected, torch.jit.CompilationUnit(source.format("remote")).f


def _times(call: Call) -> float:
    torch_remote.synchronize()

    def run() -> None:
        for _ in range(CALLS):
            call()

    return elapsed(run, time.thread_time)


def _ratio(policy: str, hooked: Call, stock: Call) -> float:
    """The shortest time of each; hooks are set and removed in every round."""
    of_hooked, of_stock = [], []
    for _ in range(ROUNDS):
        TorchDevice.enable(policy)
        _times(hooked)
        of_hooked.append(_times(hooked))
        TorchDevice.disable()
        _times(stock)
        of_stock.append(_times(stock))
    return ratio_of_best(of_hooked, of_stock)
