"""Files of Graphviz, for `debug_dump()` of graphs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def write_chain(path: str | os.PathLike[str], labels: Iterable[str]) -> None:
    """Writes nodes with these labels, each after the one before it."""
    lines = ["digraph calls {", "  node [shape=box];"]
    for number, label in enumerate(labels):
        quoted = label.replace("\\", "\\\\").replace('"', '\\"')
        lines.append(f'  {number} [label="{quoted}"];')
        lines += [f"  {number - 1} -> {number};"] if number > 0 else []
    Path(path).write_text("\n".join([*lines, "}", ""]))
