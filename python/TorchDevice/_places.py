"""How a line of the program is named: `train.py:12`, in a notebook `cell 3, line 12`.

ipykernel compiles each cell under a file name of its own, `/tmp/ipykernel_PID/HASH.py`, and IPython
at a terminal under `<ipython-input-3-HASH>`.
"""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from typing import Any

_AT_A_TERMINAL = re.compile(r"<ipython-input-(\d+)-\w+>")


def place_of(file: str, line: int) -> str:
    cell = _cell_of(file)
    return f"{file}:{line}" if cell is None else f"cell {cell}, line {line}"


def _cell_of(file: str) -> int | None:
    """The number of the cell; None: it is a file."""
    match = _AT_A_TERMINAL.fullmatch(file)
    if match is not None:
        return int(match[1])
    interactive: Any = sys.modules.get("IPython")
    if interactive is None:
        return None
    with suppress(Exception):  # IPython's own, and may be missing in other versions
        cells: dict[str, int] = interactive.get_ipython().compile._filename_map
        return cells.get(file)
    return None
