"""Tells the extension that this is a notebook, and which file is which cell, for errors.

ipykernel compiles each cell under a file name of its own, `/tmp/ipykernel_PID/HASH.py`, which says
nothing to the user.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

from . import _C


def watch_cells() -> None:
    """In a process that runs cells: notes those that have run, and each before it runs."""
    interactive = sys.modules.get("IPython")
    shell = interactive.get_ipython() if interactive is not None else None
    if shell is None:
        return
    _C.set_in_notebook(getattr(shell, "kernel", None) is not None)
    # Both are IPython's own, and may be missing in other versions: then files are named.
    with suppress(Exception):
        for file, number in shell.compile._filename_map.items():
            _C.note_cell(file, number)
        shell.events.register("pre_run_cell", lambda info: _note(shell, info))


def _note(shell: Any, info: Any) -> None:
    with suppress(Exception):  # a cell must not fail because of this
        cell, number = info.raw_cell, shell.execution_count
        _C.note_cell(shell.compile.get_code_name(cell, cell, number), number)
