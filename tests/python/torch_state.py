"""What Python code can change in torch, as a list that can be compared with a later one.

Imports neither pytest nor torch_remote, so that a script can use it before that import.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch

State = dict[tuple[int, str, str], Any]

# Counters and caches of PyTorch that change with use.
_USED_UP = {
    ("torch.utils.hooks.RemovableHandle", "next_id"),
    ("torch.autograd.profiler", "_cupti_monitor_checked"),
    ("torch.autograd.profiler", "_cupti_monitor_module"),
}


def _owners() -> Iterator[tuple[str, Any]]:
    """Every module of torch, every class in one, and other classes that we change."""
    from multiprocessing.reduction import ForkingPickler

    seen: set[int] = set()
    modules = [m for n, m in sys.modules.items() if n == "torch" or n.startswith("torch.")]
    classes = [v for m in modules for v in list(vars(m).values()) if issubclass(type(v), type)]
    bases = [base for each in classes for base in each.__mro__]
    for owner in (*modules, *classes, *bases, ForkingPickler):
        if id(owner) not in seen and isinstance(owner, (ModuleType, type)):
            seen.add(id(owner))
            yield _name(owner), owner


def _name(owner: Any) -> str:
    if isinstance(owner, ModuleType):
        return owner.__name__
    return f"{owner.__module__}.{owner.__qualname__}"


def _items(table: Any) -> Iterator[tuple[str, Any]]:
    """The entries of a module's or class's own table, such as hooks."""
    kind = type(table)  # not isinstance(): that asks proxies for __class__, and some warn
    if issubclass(kind, dict):
        yield from ((f"[{key!r}]", value) for key, value in list(table.items()))
    elif issubclass(kind, list):
        yield from ((f"[{index}]", value) for index, value in enumerate(list(table)))


def snapshot() -> State:
    """Holds the values, so that their addresses are not reused."""
    state: State = {}
    for name, owner in _owners():
        for attribute, value in list(vars(owner).items()):
            if attribute.startswith("__") and type(value) in (dict, list):
                continue  # __annotations__, __warningregistry__, __all__
            state[id(owner), name, attribute] = value
            for key, item in _items(value):
                state[id(owner), name, attribute + key] = item
    for operator in [each for each in gc.get_objects() if type(each) is torch._ops.OpOverload]:
        for key, kernel in operator.py_kernels.items():
            state[id(operator), str(operator), f"py_kernels[{key}]"] = kernel
    state[0, "sys", "meta_path"] = tuple(sys.meta_path)
    return state


def differences(before: State, after: State) -> set[str]:
    """The names of what was added, replaced or removed. Newly imported modules do not count."""
    owners = {owner for owner, _, _ in before}
    missing = object()
    found = set()
    for place in before.keys() | after.keys():
        owner, name, attribute = place
        old, new = before.get(place, missing), after.get(place, missing)
        is_same = old is new or (name == "sys" and old == new)
        was_imported = old is missing and issubclass(type(new), ModuleType)
        if (
            owner in owners
            and not is_same
            and not was_imported
            and (name, attribute) not in _USED_UP
        ):
            found.add(f"{name}.{attribute}")
    return found
