"""Changes to modules that others may import later, and that we do not import: Triton, compilers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Change = Callable[[Any], None]


class _AfterImport(MetaPathFinder):
    """Finds modules as the other finders do, and calls functions once one is loaded."""

    def __init__(self) -> None:
        self.changes: dict[str, list[Change]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not self.changes.get(fullname):
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        found = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            self._call_after(spec.loader, fullname)
        return spec

    def _call_after(self, loader: Any, fullname: str) -> None:
        run = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            self.change(module, fullname)

        loader.exec_module = exec_module

    def change(self, module: ModuleType, fullname: str) -> None:
        for change in list(self.changes.get(fullname, ())):
            change(module)


_finder = _AfterImport()


class _LoadingSpec(ModuleSpec):
    """The spec of a module that is being loaded. Python sets `_initializing` when that ends.

    Such a module imports torch, and `import torch` imports us (TORCH_REMOTE_AUTOLOAD): what it
    defines below that line is missing.
    """

    @property
    def _initializing(self) -> bool:
        return bool(vars(self)["_initializing"])

    @_initializing.setter
    def _initializing(self, value: bool) -> None:
        vars(self)["_initializing"] = value
        module = sys.modules.get(self.name)  # None: an exception has ended the import
        if module is not None and not value:
            _finder.change(module, self.name)


def _is_loading(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def change_module(name: str, change: Change) -> Callable[[], None]:
    """Calls `change(module)`, now if the module is imported, else once it is.

    Returns what makes it forget a module that is not imported yet.
    """
    module = sys.modules.get(name)
    if module is not None and not _is_loading(module):
        change(module)
        return lambda: None
    if module is not None:
        module.__spec__.__class__ = _LoadingSpec
    _finder.changes.setdefault(name, []).append(change)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)

    def forget() -> None:
        _finder.changes[name].remove(change)
        if not any(_finder.changes.values()) and _finder in sys.meta_path:
            sys.meta_path.remove(_finder)

    return forget
