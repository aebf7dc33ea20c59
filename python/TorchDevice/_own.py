"""Functions that answer under a second name."""

from __future__ import annotations

import inspect
from functools import wraps
from typing import Any


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
