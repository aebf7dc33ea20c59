"""Attributes and entries that several lists of changes may have changed, one on top of another."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

MISSING: Any = object()

Make = Callable[[Any], Any]


class _Change:
    """A value that a list of changes has set, on top of `old`."""

    def __init__(self, old: Any, value: Any, make: Make | None) -> None:
        self.old = old
        self.value = value
        self.make = make  # makes the value from the one below it; None: it does not depend on that


class Place:
    """An attribute of a module or class, or an entry of a table, and the changes in it."""

    def __init__(self, owner: Any, name: Any, is_entry: bool) -> None:
        self._owner = owner  # kept alive: _places knows it by its address
        self._name = name
        self._is_entry = is_entry
        self._changes: list[_Change] = []  # the lowest one first

    def value(self) -> Any:
        # From vars(owner): getattr() would call descriptors and look into base classes.
        table = self._owner if self._is_entry else vars(self._owner)
        return table.get(self._name, MISSING)

    def change(self, new: Any) -> Callable[[], None]:
        """Sets a value. Returns what takes it back."""
        undo = self.note(self.value(), new)
        self._set(new)
        return undo

    def wrap(self, make: Make) -> Callable[[], None]:
        """Sets `make(value)`. Makes it anew when a change below it is taken back."""
        old = self.value()
        new = make(_seen(old))
        undo = self.note(old, new, make)
        self._set(new)
        return undo

    def note(self, old: Any, new: Any, make: Make | None = None) -> Callable[[], None]:
        """Notes a value that is set, or will be. Returns what takes it back."""
        change = _Change(old, new, make)
        self._changes.append(change)
        _places[self._key()] = self
        return partial(self._take_back, change)

    def _take_back(self, change: _Change) -> None:
        index = self._changes.index(change)
        del self._changes[index]
        if not self._changes:
            del _places[self._key()]
        if index == len(self._changes):
            self._set(change.old)
        else:
            self._lower(index, change.value, change.old)

    def _lower(self, index: int, was: Any, now: Any) -> None:
        """What was below the changes from `index` on is now another value. They stay in force."""
        for above in self._changes[index:]:
            if above.old is not was:
                return  # another library's change is between them
            above.old = now
            if above.make is None:
                return
            was, now = above.value, above.make(_seen(now))
            above.value = now
        if self.value() is was:  # no other library's change is on top
            self._set(now)

    def _set(self, value: Any) -> None:
        if self._is_entry and value is MISSING:
            self._owner.pop(self._name, None)
        elif self._is_entry:
            self._owner[self._name] = value
        elif value is MISSING:
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, value)

    def _key(self) -> tuple[int, Any]:
        return id(self._owner), self._name


_places: dict[tuple[int, Any], Place] = {}  # those that have changes


def place(owner: Any, name: Any, is_entry: bool = False) -> Place:
    return _places.get((id(owner), name)) or Place(owner, name, is_entry)


def _seen(value: Any) -> Any:
    return None if value is MISSING else value
