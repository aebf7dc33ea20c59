"""What the note that every `step()` takes costs, as a share of the step. 149 parameters.

    python benchmarks/python/step_notes.py                   times
    python benchmarks/python/step_notes.py --instructions    needs valgrind, see below

Times: steps with and without the note alternate in one run. They are those of this thread on a
processor. `share` is the median of the ratios of neighbours, `least` compares the least of each.

Instructions, which other load does not change: as redirect_instructions.py counts them. Those of
notes alone, as a share of a step without one. Beside it, how much longer a step with one is; this
differs, since a note holds references to tensors and PyTorch's step then works differently.
"""

from __future__ import annotations

import functools
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from redirect_instructions import INSIDE, control, count_in
from torch.optim import optimizer as hooks

import torch_remote

PARAMETERS = 149
ROUNDS = 600
COUNTED = 20  # steps whose instructions are counted

Make = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
MAKE: dict[str, Make] = {
    "AdamW, foreach": lambda some: torch.optim.AdamW(some, foreach=True),
    "AdamW, fused": lambda some: torch.optim.AdamW(some, fused=True),
    "AdamW, loop": lambda some: torch.optim.AdamW(some, foreach=False),
    "Adam, foreach": lambda some: torch.optim.Adam(some, foreach=True),
    "SGD, foreach": lambda some: torch.optim.SGD(some, lr=0.1, foreach=True),
    "SGD, fused": lambda some: torch.optim.SGD(some, lr=0.1, fused=True),
    "SGD, loop": lambda some: torch.optim.SGD(some, lr=0.1, foreach=False),
    "SGD with momentum, foreach": lambda some: torch.optim.SGD(
        some, lr=0.1, momentum=0.9, foreach=True
    ),
    "SGD with momentum, fused": lambda some: torch.optim.SGD(
        some, lr=0.1, momentum=0.9, fused=True
    ),
    "SGD with momentum, loop": lambda some: torch.optim.SGD(
        some, lr=0.1, momentum=0.9, foreach=False
    ),
}

TABLES = (hooks._global_optimizer_pre_hooks, hooks._global_optimizer_post_hooks)
NOTING = [dict(table) for table in TABLES]


def set_noting(is_on: bool) -> None:
    for table, entries in zip(TABLES, NOTING, strict=True):
        table.clear()
        table.update(entries if is_on else {})


def make_optimizer(make: Make) -> torch.optim.Optimizer:
    weights = [torch.nn.Parameter(torch.ones(16, device="remote")) for _ in range(PARAMETERS)]
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer = make(weights)
    for _ in range(5):
        optimizer.step()
    return optimizer


def seconds(step: Callable[[], object], is_noted: bool) -> float:
    set_noting(is_noted)
    torch_remote.synchronize()
    begin = time.thread_time()
    step()
    return time.thread_time() - begin


def show_times() -> None:
    print(f"{'optimizer':28} {'step':>9} {'note':>9} {'share':>7} {'least':>7}")
    for name, make in MAKE.items():
        optimizer = make_optimizer(make)
        pairs = [(seconds(optimizer.step, True), seconds(optimizer.step, False))]
        for _ in range(ROUNDS):
            pairs.append((seconds(optimizer.step, True), seconds(optimizer.step, False)))
        share = statistics.median(noted / plain for noted, plain in pairs) - 1
        plain = statistics.median(plain for _, plain in pairs)
        least = min(noted for noted, _ in pairs) / min(plain for _, plain in pairs) - 1
        note = f"{plain * share * 1e6:6.1f} µs"
        print(f"{name:28} {plain * 1e6:6.0f} µs {note} {share:7.1%} {least:7.1%}")


def take_note(optimizer: torch.optim.Optimizer) -> None:
    for table in TABLES:
        for hook in table.values():
            hook(optimizer, (), {})


def count_steps() -> None:
    """Inside valgrind: writes a file of counts for nothing, notes, steps with one and without."""
    gc.disable()  # a collection has more instructions than a step
    for make in MAKE.values():
        optimizer = make_optimizer(make)
        step = optimizer.step
        note = functools.partial(take_note, optimizer)
        for work, is_noted in ((None, True), (note, True), (step, True), (step, False)):
            set_noting(is_noted)
            for _ in range(COUNTED if work else 0):
                work()
            torch_remote.synchronize()
            control("--instr=on")
            control("--zero")
            for _ in range(COUNTED if work else 0):
                work()
            control("--dump")
            control("--instr=off")


def show_instructions() -> None:
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder) / "counts"
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--separate-threads=yes"]
        command += [f"--callgrind-out-file={counts}", sys.executable, __file__]
        subprocess.run(command, env={**os.environ, INSIDE: "1"}, check=True, capture_output=True)
        # The first thread's files are numbered in the order in which they were written.
        numbers = iter(range(1, 1 + 4 * len(MAKE)))
        for name in MAKE:
            nothing, note, noted, plain = (
                count_in(Path(f"{counts}.{next(numbers)}-01")) / COUNTED for _ in "1234"
            )
            share = (note - nothing) / (plain - nothing)
            more = (noted - plain) / (plain - nothing)
            each = f"{note - nothing:.0f} of {plain - nothing:.0f} instructions"
            print(f"{name:28} {share:6.2%}  {each}, the whole step {more:+.2%}")


if __name__ == "__main__":
    if os.environ.get(INSIDE):
        count_steps()
    elif "--instructions" in sys.argv:
        show_instructions()
    else:
        show_times()
