"""The suites. To add one: a module here with `cases(scope) -> Iterator[Case]`, and its name."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # run.py reads only the names, without torch
    from cases import Case, Scope


SUITES = (
    *(
        "ops",
        "sparse",
        "nested",
        "modules",
        "optimizers",
        "graphs",
        "functorch",
        "trace",
        "compile",
        "export",
    ),
)


def cases_of(names: Sequence[str], scope: Scope) -> dict[tuple[str, str, str, str], Case]:
    """All cases by (suite, op, variant, dtype), in order. Import the backend first."""
    found = {}
    for name in names:
        for case in importlib.import_module(f"suites.{name}").cases(scope):
            found[(name, *case.key)] = case
    return found
