"""The list of all changes that TorchDevice makes in torch's Python, to take them back.

The same idea as `torch_remote._patches`, which cannot be used here: importing it loads the client.
A change of C++ (`_C.hook_method()` and others) is taken back by `_C.unhook()`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

_MISSING: Any = object()


class Changes:
    """Changes that are taken back together, the last one first."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []

    def patch(self, owner: Any, name: str, new: Any) -> None:
        """Sets an attribute of a module or class."""
        # From vars(owner): getattr() would call descriptors and look into base classes.
        old = vars(owner).get(name, _MISSING)
        back = partial(delattr, owner, name) if old is _MISSING else partial(setattr, owner, name)
        self.on_undo(back if old is _MISSING else partial(back, old))
        setattr(owner, name, new)

    def on_undo(self, action: Callable[[], object]) -> None:
        """Makes `undo()` call `action()`."""
        self._undo.append(action)

    def undo(self) -> None:
        while self._undo:
            self._undo.pop()()


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
