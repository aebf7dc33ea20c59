"""The one list of everything that this package changes in torch's Python, so that it can be taken back.

Who changes something in torch calls one of these instead of assigning:

    patch(owner, name, new)      an attribute of a module or a class, one that is there or a new one
    patch_item(table, key, new)  an entry of a dict, such as a table of reducers
    on_undo(action)              what takes back anything else, such as the `remove` of a hook's handle
    with noting(owner, ...):     attributes that a function of PyTorch sets on these owners

    patch(torch.nn.Module, "to", _moving(torch.nn.Module.to))
    on_undo(register_optimizer_step_pre_hook(_before_step).remove)

`undo_all()` takes back all of it, the last change first. Then each attribute is the object it was
before, and what was added is gone; `torch_remote._change_torch()` makes the changes again.

What stays: kernels in the dispatcher and the name of the private backend, which PyTorch registers
for the life of the process, with `torch.remote` and the names that go with it in `DeviceType` and
`ProfilerActivity`.

A change that another library made on top of ours is lost with ours. Not thread-safe: undo while no
other thread uses torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from functools import partial
from typing import Any

_MISSING: Any = object()

_undo: list[Callable[[], object]] = []


def patch(owner: Any, name: str, new: Any) -> None:
    """Sets an attribute of a module or class. A descriptor, such as a property, is set as it is."""
    _note(owner, name, vars(owner).get(name, _MISSING))
    setattr(owner, name, new)


def patch_item(table: MutableMapping[Any, Any], key: Any, new: Any) -> None:
    """Sets an entry of a table."""
    old = table.get(key, _MISSING)
    on_undo(
        partial(table.pop, key, None) if old is _MISSING else partial(table.__setitem__, key, old)
    )
    table[key] = new


def on_undo(action: Callable[[], object]) -> None:
    """Has `undo_all()` call `action()`."""
    _undo.append(action)


@contextmanager
def noting(*owners: Any) -> Iterator[None]:
    """For code that is not ours: notes which attributes of the owners the block sets."""
    before = [dict(vars(owner)) for owner in owners]
    try:
        yield
    finally:
        for owner, old in zip(owners, before, strict=True):
            for name, value in dict(vars(owner)).items():
                if value is not old.get(name, _MISSING):
                    _note(owner, name, old.get(name, _MISSING))


def undo_all() -> None:
    """Takes every change back, the last one first. Without changes it does nothing."""
    while _undo:
        _undo.pop()()


def _note(owner: Any, name: str, old: Any) -> None:
    # From vars(owner): getattr() would give what a descriptor makes, or what a base class has.
    on_undo(
        partial(delattr, owner, name) if old is _MISSING else partial(setattr, owner, name, old)
    )
