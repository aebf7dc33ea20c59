#!/usr/bin/env python3
"""Fail when an extension module for macOS lacks a symbol that nothing will provide.

Extension modules are linked with `-undefined dynamic_lookup`, because the Python that loads them
has Python's symbols. The linker then says nothing about other symbols that it does not find. This
reads the symbol tables of 64-bit Mach-O files: what no library provides must be a name of Python,
and the module must have `PyInit__C`.
"""

from __future__ import annotations

import struct
import sys
from collections import Counter
from pathlib import Path

MAGIC_64, ARM64 = 0xFEEDFACF, 0x0100000C
SYMTAB, LOAD_DYLIB, LOAD_WEAK_DYLIB, REEXPORT_DYLIB = 0x2, 0xC, 0x80000018, 0x8000001F
EXTERNAL, TYPE, DEBUGGING = 0x01, 0x0E, 0xE0
SYMBOL = struct.Struct("<IBBHQ")


def text_at(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()


def read(data: bytes) -> tuple[set[str], dict[str, list[str]]]:
    """The symbols that a file defines for others, and those it wants, by library."""
    magic, processor, _, _, commands = struct.unpack_from("<5I", data)
    if magic != MAGIC_64 or processor != ARM64:
        raise ValueError("is no Mach-O file for arm64")
    libraries, table, at = [], (0, 0, 0), 32
    for _ in range(commands):
        kind, size = struct.unpack_from("<2I", data, at)
        if kind in (LOAD_DYLIB, LOAD_WEAK_DYLIB, REEXPORT_DYLIB):
            name_at = struct.unpack_from("<I", data, at + 8)[0]
            libraries.append(Path(text_at(data, at + name_at)).name)
        elif kind == SYMTAB:
            table = struct.unpack_from("<3I", data, at + 8)
        at += size
    begin, count, names = table
    defined, wanted = set(), dict[str, list[str]]()
    for i in range(count):
        name_at, kind, _, about, _ = SYMBOL.unpack_from(data, begin + i * SYMBOL.size)
        if kind & DEBUGGING or not kind & EXTERNAL:
            continue
        name, place = text_at(data, names + name_at), about >> 8
        if kind & TYPE:
            defined.add(name)
            continue
        library = libraries[place - 1] if 0 < place <= len(libraries) else ""  # looked up by name
        wanted.setdefault(library, []).append(name)
    return defined, wanted


def check(data: bytes) -> tuple[str, list[str]]:
    """What a module wants, in a line, and what is wrong."""
    defined, wanted = read(data)
    bad = [f"has no {name}" for name in ("_PyInit__C",) if name not in defined]
    bad += [
        f"no library has {name}"
        for name in wanted.get("", [])
        if not name.startswith(("_Py", "__Py"))
    ]
    counts = Counter({library or "Python": len(names) for library, names in wanted.items()})
    return ", ".join(f"{count} of {name}" for name, count in counts.most_common()), bad


def main() -> int:
    failed = False
    for path in sys.argv[1:]:
        summary, bad = check(Path(path).read_bytes())
        failed = failed or bool(bad)
        print(f"{Path(path).parent.name}/{Path(path).name}: symbols {summary}")
        print("".join(f"  {line}\n" for line in bad), end="")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
