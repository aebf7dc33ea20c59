"""What TorchDevice costs native CUDA code: for each call a ratio, hooks on against off."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch

os.environ["TORCHDEVICE_POLICY"] = "off"
os.environ["TORCHDEVICE_LOG_LEVEL"] = "ERROR"
import TorchDevice

ROUNDS, CALLS = 9, 2000


def measure(call: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    start = time.thread_time()
    for _ in range(CALLS):
        call()
    return time.thread_time() - start


def main() -> None:
    x = torch.ones(8, 8, device="cuda")
    calls: dict[str, Callable[[], Any]] = {
        "torch.device('cuda')": lambda: torch.device("cuda"),
        "torch.empty(2, device='cuda')": lambda: torch.empty(2, device="cuda"),
        "x.to('cuda')": lambda: x.to("cuda"),
        "x + x": lambda: x + x,
    }
    for name, call in calls.items():
        hooked, stock = [], []
        for _ in range(ROUNDS):
            TorchDevice.enable("full")
            hooked.append(measure(call))
            TorchDevice.disable()
            stock.append(measure(call))
        print(f"{name:<32} {min(hooked) / min(stock):.3f} x")


if __name__ == "__main__":
    main()
