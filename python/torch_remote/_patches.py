"""The list of all changes that this package makes in torch's Python, to take them back.

Code that changes something in torch calls one of these instead of assigning:

    patch(owner, name, new)      sets an attribute of a module or a class
    patch_item(table, key, new)  sets an entry of a dict, such as a table of reducers
    on_undo(action)              for other changes: such as the `remove` of a hook's handle
    with noting(owner, ...):     attributes that a function of PyTorch sets on these owners

    patch(torch.nn.Module, "to", _moving(torch.nn.Module.to))
    on_undo(register_optimizer_step_pre_hook(_before_step).remove)

`undo_all()` takes all changes back, the last one first: each attribute is the original object
again. `torch_remote._change_torch()` makes the changes again.

Not taken back: kernels in the dispatcher and the name of the backend, which PyTorch registers for
the life of the process, with `torch.remote` and the names in `DeviceType` and `ProfilerActivity`.

A change that another library made on top of ours is lost with ours. Not thread-safe: call
`undo_all()` only while no other thread uses torch.
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
    old = table.get(key, _MISSING)
    on_undo(
        partial(table.pop, key, None) if old is _MISSING else partial(table.__setitem__, key, old)
    )
    table[key] = new


def on_undo(action: Callable[[], object]) -> None:
    """Makes `undo_all()` call `action()`."""
    _undo.append(action)


@contextmanager
def noting(*owners: Any) -> Iterator[None]:
    """Notes which attributes of the owners the block sets; for functions that are not ours."""
    before = [dict(vars(owner)) for owner in owners]
    try:
        yield
    finally:
        for owner, old in zip(owners, before, strict=True):
            for name, value in dict(vars(owner)).items():
                if value is not old.get(name, _MISSING):
                    _note(owner, name, old.get(name, _MISSING))


def undo_all() -> None:
    """Takes every change back, the last one first."""
    while _undo:
        _undo.pop()()


def _note(owner: Any, name: str, old: Any) -> None:
    # From vars(owner): getattr() would call descriptors and look into base classes.
    on_undo(
        partial(delattr, owner, name) if old is _MISSING else partial(setattr, owner, name, old)
    )
