"""Dicts and sets whose keys are hooked functions.

The hash of a builtin function is the address of its C function, which a hook changes. So PyTorch's
own tables of functions (of `torch.device` as a context manager, of torch._dynamo) would not find
them any more. While hooks are set or removed, the entries are taken out and put back.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any


def _has_key(container: Any, functions: set[int]) -> bool:
    return any(id(key) in functions for key in list(container))


@contextmanager
def rehashing(functions: Iterable[Any]) -> Iterator[None]:
    """Around a change of what the functions do."""
    builtins = [each for each in functions if type(each) is type(len)]
    known = {id(each) for each in builtins}
    found = gc.get_referrers(*builtins) if builtins else []
    tables = [each for each in found if type(each) is dict and _has_key(each, known)]
    sets = [each for each in found if type(each) is set]
    kept: list[tuple[Any, list[Any]]] = [(each, list(each.items())) for each in tables]
    kept += [(each, list(each)) for each in sets]
    try:
        yield
    finally:
        for container, entries in kept:
            container.clear()
            container.update(entries)
