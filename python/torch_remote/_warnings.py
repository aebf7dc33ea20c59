"""Gives `warnings` what kernels on servers warn of, as if the line of the call had warned.

C++ calls `show` when a thread of the program waits: src/client/session/warnings.h.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

# What was shown already, by file: of files that are no module's, such as a notebook's cells.
_registries: dict[str, dict[Any, Any]] = {}
_modules: dict[str, str] = {}  # their names, by file


def _variables_of(name: str) -> dict[str, Any]:
    return getattr(sys.modules.get(name), "__dict__", {})


def _module_of(file: str) -> tuple[str, dict[Any, Any]]:
    """The name and the `__warningregistry__` of the module that this file is."""
    for name in [_modules.get(file, ""), *sys.modules]:
        variables = _variables_of(name)
        if variables.get("__file__") == file:
            _modules[file] = name
            return name, variables.setdefault("__warningregistry__", {})
    return "__main__", _registries.setdefault(file, {})


def show(is_deprecation: bool, text: str, file: str, line: int, prints: bool) -> bool:
    """Whether a filter makes it an error, which is not raised. With `prints` it is printed then."""
    category = DeprecationWarning if is_deprecation else UserWarning
    module, registry = _module_of(file)
    try:
        warnings.warn_explicit(text, category, file or "unknown", line, module, registry)
    except category as error:
        if prints:
            warnings.showwarning(error, category, file or "unknown", line)
        return True
    return False
