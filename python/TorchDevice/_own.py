"""Functions that answer under a second name."""

from __future__ import annotations

import inspect
import sys
from functools import wraps
from typing import Any

import torch

from . import _C

_LIBRARIES = ("torch", "TorchDevice", "torch_remote", "torch_modal")


def own_function(function: Any) -> Any:
    """A function object of its own that does the same; classes and values are returned as they are.

    torch._dynamo looks functions up by their identity and refuses one that has two names.
    """
    if inspect.isclass(function) or not callable(function):
        return function

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    del call.__wrapped__
    return call


def note(api: str, asked: str, caller: str) -> None:
    """Counts a call of the user's program that is answered for another device than it names.

    `caller` is the module of the frame that called. Calls of torch and of ours do not count.
    """
    if caller.partition(".")[0] not in _LIBRARIES:
        _C.note_redirect(api, asked)


def noted_function(function: Any, api: str) -> Any:
    """The same as own_function(); each call of the user's program is logged and in the report."""
    if inspect.isclass(function) or not callable(function):
        return function

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_dynamo_compiling():  # torch.compile cannot trace what follows
            note(api, "cuda", sys._getframe(1).f_globals.get("__name__", ""))
        return function(*args, **kwargs)

    del call.__wrapped__
    return call
