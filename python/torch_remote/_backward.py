"""Calls that autograd's threads make count as calls of the thread that called `backward()`.

A failed call stops the thread that made it (docs/errors.md). So while a backward runs, its threads
know who called it: Note [Whose call] in `src/client/process/threads.h`.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import torch

from . import _C
from ._backend import name
from ._patches import leave_to_python, patch


def _name_types(error: RuntimeError) -> None:
    """PyTorch's check of what a hook returns calls our tensors `remoteFloatType`, which is no name
    of theirs."""
    text = str(error)
    if len(error.args) == 1 and "has changed the type" in text:
        error.args = (re.sub(rf"\b{name()}(\w+)Type\b", rf"torch.{name()}.\1Tensor", text),)


def install() -> None:
    run = torch.autograd.graph._engine_run_backward

    @functools.wraps(run)
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        _C.enter_backward()
        try:
            return run(*args, **kwargs)
        except RuntimeError as error:
            _name_types(error)
            raise
        finally:
            _C.leave_backward()

    leave_to_python(run_backward)  # or torch.compile warns that it cannot compile it
    # `torch.autograd` has its own reference to the function.
    patch(torch.autograd.graph, "_engine_run_backward", run_backward)
    patch(torch.autograd, "_engine_run_backward", run_backward)
