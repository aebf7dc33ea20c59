"""Whose call it is: `callers.json`, for C++ and for the functions of `torch.cuda`."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

import torch

# The part of torch.compile that calls a function of the program it compiles, for a constant.
_TRACER = "torch._dynamo.variables.torch"


@functools.cache
def table() -> dict[str, str]:
    entries = json.loads((Path(__file__).parent / "callers.json").read_text())
    return {name: policy for name, policy in entries.items() if not name.startswith("_")}


@functools.cache
def limit(module: str) -> str:
    """The policy for calls of a module: that of the longest listed name above it."""
    while module:
        if module in table():
            return table()[module]
        module = module.rpartition(".")[0]
    return "full"


def truth_for_listed(answer: Any, truth: Any) -> Any:
    """A function that gives listed callers torch's own answer, such as torch's compilers."""

    @functools.wraps(truth)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():  # it traces a function of the program
            return answer(*args, **kwargs)
        caller = sys._getframe(1).f_globals.get("__name__", "")
        is_user = limit(caller) == "full" and not caller.startswith("torch.")
        return (answer if is_user or caller == _TRACER else truth)(*args, **kwargs)

    del call.__wrapped__
    return call
