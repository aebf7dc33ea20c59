"""Calls that autograd's threads make count as calls of the thread that called `backward()`.

A failed call stops the thread that made it (docs/errors.md). So while a backward runs, its threads
know who called it: Note [Whose call] in `src/client/process/threads.h`.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from . import _C
from ._patches import leave_to_python, patch


def install() -> None:
    run = torch.autograd.graph._engine_run_backward

    @functools.wraps(run)
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        _C.enter_backward()
        try:
            return run(*args, **kwargs)
        finally:
            _C.leave_backward()

    leave_to_python(run_backward)  # or torch.compile warns that it cannot compile it
    # `torch.autograd` has its own reference to the function.
    patch(torch.autograd.graph, "_engine_run_backward", run_backward)
    patch(torch.autograd, "_engine_run_backward", run_backward)
