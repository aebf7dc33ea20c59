"""Dicts and sets whose keys are hooked functions, and their subclasses.

The hash of a builtin function is the address of its C function, which a hook changes. So PyTorch's
own tables of functions (of `torch.device` as a context manager, of torch._dynamo) would not find
them any more. While hooks are set or removed, the entries are taken out and put back. A frozenset
cannot be changed, and so keeps the old hashes.
"""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any


def _kind_of(container: Any) -> Any:
    """The class whose methods change the container: a subclass may do more in its own."""
    return next(kind for kind in (OrderedDict, dict, set) if issubclass(type(container), kind))


def _entries(container: Any) -> list[Any]:
    kind = _kind_of(container)
    return list(set.__iter__(container) if kind is set else kind.items(container))


def _has_key(container: Any, functions: set[int]) -> bool:
    keys = (set if _kind_of(container) is set else dict).__iter__(container)
    return any(id(key) in functions for key in list(keys))


@contextmanager
def rehashing(functions: Iterable[Any]) -> Iterator[None]:
    """Around a change of what the functions do."""
    builtins = [each for each in functions if type(each) is type(len)]
    known = {id(each) for each in builtins}
    found = gc.get_referrers(*builtins) if builtins else []
    # Not isinstance(): that asks proxies for their class, which may run code of others.
    containers = [each for each in found if issubclass(type(each), (dict, set))]
    kept = [(each, _entries(each)) for each in containers if _has_key(each, known)]
    try:
        yield
    finally:
        for container, entries in kept:
            _put_back(container, entries)


def _put_back(container: Any, entries: list[Any]) -> None:
    kind = _kind_of(container)
    kind.clear(container)
    if kind is set:
        set.update(container, entries)
        return
    for key, value in entries:
        kind.__setitem__(container, key, value)
