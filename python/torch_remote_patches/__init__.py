"""Lists of changes to torch's Python that can be taken back. For torch_remote and TorchDevice.
Also what else both need: byte_count.py.

A package of its own, because importing torch_remote loads its client, which TorchDevice does not
need. Imports nothing but the standard library.

Two lists may change the same attribute, and be undone in any order: what one list has set stays
while it is in force. A change that another library made on top of ours is lost when the uppermost
of ours is taken back. Not thread-safe: call `undo_all()` only while no other thread uses torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

from . import after_import
from .places import MISSING, place

__all__ = ["Patches"]


class Patches:
    """Changes that are taken back together, the last one first."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []

    def patch(self, owner: Any, name: str, new: Any) -> None:
        """Sets an attribute of a module or class. A descriptor, such as a property, stays one."""
        self.on_undo(place(owner, name).change(new))

    def wrap(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Sets an attribute to `make(its value)`; the owner has none of its own: `make(None)`.

        For what another list changes too: if that list is undone first, `make` is called again
        with what was there before.
        """
        self.on_undo(place(owner, name).wrap(make))

    def patch_item(self, table: MutableMapping[Any, Any], key: Any, new: Any) -> None:
        """Sets an entry of a dict, such as a table of reducers."""
        self.on_undo(place(table, key, is_entry=True).change(new))

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
                    if value is not old.get(name, MISSING):
                        self.on_undo(place(owner, name).note(old.get(name, MISSING), value))

    def undo_all(self) -> None:
        """Takes every change of this list back. Without others, each attribute is the original."""
        while self._undo:
            self._undo.pop()()
