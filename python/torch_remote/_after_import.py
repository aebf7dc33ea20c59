"""Changes to modules that others may import later, and that we do not import: Triton, compilers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from ._patches import on_undo, patch_item

Change = Callable[[Any], None]


class _AfterImport(MetaPathFinder):
    """Finds modules as the other finders do, and calls a function once one is loaded."""

    def __init__(self) -> None:
        self.changes: dict[str, Change] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        change = self.changes.get(fullname)
        if change is None:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        found = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            _call_after(spec.loader, change)
        return spec


def _call_after(loader: Any, change: Change) -> None:
    run = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        run(module)
        change(module)

    loader.exec_module = exec_module


_finder = _AfterImport()


def change_module(name: str, change: Change) -> None:
    """Calls `change(module)`, now if the module is imported, else once it is.

    `change` uses `patch()`, so that its changes can be taken back.
    """
    if name in sys.modules:
        change(sys.modules[name])
        return
    patch_item(_finder.changes, name, change)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
        on_undo(_remove_finder)


def _remove_finder() -> None:
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
