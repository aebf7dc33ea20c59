#!/usr/bin/env python3
"""Fail on lines of more than 100 columns in the folders below; comments and strings count too."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = 100
FOLDERS = ("benchmarks", "examples", "python", "src", "tests", "tools")
SUFFIXES = {".cpp", ".h", ".py", ".sh"}


def source_files() -> list[Path]:
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*"))]
    return [path for path in files if path.suffix in SUFFIXES]


def long_lines(path: Path) -> list[str]:
    lines = path.read_text().splitlines()
    name = path.relative_to(ROOT)
    return [
        f"{name}:{number}: {len(line)} columns, at most {COLUMNS} are allowed"
        for number, line in enumerate(lines, 1)
        if len(line) > COLUMNS
    ]


def main() -> int:
    files = source_files()
    bad = [line for path in files for line in long_lines(path)]
    print("\n".join(bad) if bad else f"width: {len(files)} files, no line over {COLUMNS} columns")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
