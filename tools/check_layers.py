#!/usr/bin/env python3
"""Fail when a source file includes a layer that its folder may not see.

The table is the architecture: a folder may include itself and what is listed for it, and the rows
are in dependency order, so a row can only name rows above it (no cycles by construction).

Also: every folder of src/ has a row, every "quoted" include is a file there, written from src/, and
the macros that register something with PyTorch when a library is loaded stand in files named
register.cpp only.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ALLOWED = {
    "base": [],
    "wire": ["base"],
    "transport": ["base"],
    "marshal": ["base", "wire", "torch"],
    "redirect": ["base", "torch", "python"],
    "client": ["base", "wire", "transport", "marshal", "torch"],
    "server": ["base", "wire", "transport", "marshal", "torch"],
    "bindings": ["base", "client", "redirect", "torch", "python", "pybind11"],
}
EXTERNAL = [
    (
        r"torch/csrc/(utils/pybind|autograd/python_|Exceptions|THP|Device|Generator|Stream)",
        "python",
    ),
    (r"torch/(extension|python)\.h", "python"),
    (r"(ATen|c10|torch|caffe2)/", "torch"),
    (r"pybind11/", "pybind11"),
    (r"Python\.h", "python"),
]
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)
REGISTRATION = re.compile(r"^\s*(TORCH_LIBRARY\w*|(?:C10_|TORCH_)?REGISTER_\w+)\s*\(", re.M)

SRC = Path(__file__).resolve().parent.parent / "src"


def layer_of(header: str) -> str | None:
    top = header.split("/")[0]
    if top in ALLOWED:
        return top
    return next((name for pattern, name in EXTERNAL if re.match(pattern, header)), None)


def check_table() -> list[str]:
    rows = list(ALLOWED)
    bad = [
        f"table: {row} names {layer} below it"
        for i, row in enumerate(rows)
        for layer in ALLOWED[row]
        if layer in rows and rows.index(layer) >= i
    ]
    folders = [p.name for p in SRC.iterdir() if p.is_dir()]
    return bad + [f"table: src/{name} has no row" for name in folders if name not in ALLOWED]


def check_file(path: Path) -> list[str]:
    name, layer = path.relative_to(SRC.parent), path.relative_to(SRC).parts[0]
    text = path.read_text()
    bad = []
    for quote, header in INCLUDE.findall(text):
        target = layer_of(header)
        if target and target != layer and target not in ALLOWED.get(layer, []):
            bad.append(f"{name}: {layer} may not include {header}")
        if quote == '"' and not (SRC / header).exists():
            bad.append(f'{name}: no file src/{header}; write "folder/file.h", and <…> for others\'')
    if path.name != "register.cpp":
        bad += [
            f"{name}: {macro} belongs in a register.cpp" for macro in REGISTRATION.findall(text)
        ]
    return bad


def main() -> int:
    files = [p for p in sorted(SRC.glob("*/**/*")) if p.suffix in {".h", ".cpp"}]
    bad = check_table() + [line for path in files for line in check_file(path)]
    print("\n".join(bad) if bad else f"layers: {len(files)} files, no violation")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
