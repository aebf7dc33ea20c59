"""Lists of changes to torch's Python that can be taken back. For torch_remote and TorchDevice.

A package of its own, because importing torch_remote loads its client, which TorchDevice does not
need. Imports nothing but the standard library.

A change that another library made on top of one of ours is lost when ours is taken back. Not
thread-safe: call `undo_all()` only while no other thread uses torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from . import after_import

__all__ = ["Patches"]

_MISSING: Any = object()


class Patches:
    """Changes that are taken back together, the last one first."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []

    def patch(self, owner: Any, name: str, new: Any) -> None:
        """Sets an attribute of a module or class. A descriptor, such as a property, stays one."""
        self._note(owner, name, vars(owner).get(name, _MISSING))
        setattr(owner, name, new)

    def patch_item(self, table: MutableMapping[Any, Any], key: Any, new: Any) -> None:
        """Sets an entry of a dict, such as a table of reducers."""
        old = table.get(key, _MISSING)
        is_new = old is _MISSING
        self.on_undo(
            partial(table.pop, key, None) if is_new else partial(table.__setitem__, key, old)
        )
        table[key] = new

    def on_undo(self, action: Callable[[], object]) -> None:
        """Makes `undo_all()` call `action()`: such as the `remove` of a hook's handle."""
        self._undo.append(action)

    def change_module(self, name: str, change: Callable[[Any], None]) -> None:
        """Calls `change(module)`, now if the module is imported, else once it is.

        `change` uses `patch()`, so that its changes can be taken back.
        """
        self.on_undo(after_import.change_module(name, change))

    @contextmanager
    def noting(self, *owners: Any) -> Iterator[None]:
        """Notes which attributes of the owners the block sets; for functions that are not ours."""
        before = [dict(vars(owner)) for owner in owners]
        try:
            yield
        finally:
            for owner, old in zip(owners, before, strict=True):
                for name, value in dict(vars(owner)).items():
                    if value is not old.get(name, _MISSING):
                        self._note(owner, name, old.get(name, _MISSING))

    def undo_all(self) -> None:
        """Takes every change back: each attribute is the original object again."""
        while self._undo:
            self._undo.pop()()

    def _note(self, owner: Any, name: str, old: Any) -> None:
        # From vars(owner): getattr() would call descriptors and look into base classes.
        self.on_undo(
            partial(delattr, owner, name) if old is _MISSING else partial(setattr, owner, name, old)
        )
