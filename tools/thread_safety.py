#!/usr/bin/env python3
"""Checks GUARDED_BY, REQUIRES and their like with clang, in the layers that use torch.

Nothing is compiled: clang only parses (-fsyntax-only) what build/release compiles, each folder as
one unit, with torch's headers in a precompiled one. So this takes a minute or two of one core; to
build with clang takes ten. Every warning of clang is an error. Not checked: main.cpp, which has no
lock, src/bindings and src/redirect. With names of units (client-session), only these; --each makes
each file a unit, which also shows a file that needs an include of a neighbour's. JOBS and CLANG as
usual.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILT = ROOT / "build" / "release"
HERE = ROOT / "build" / "thread-safety"
CLANG = os.environ.get("CLANG", "clang++-14")
LAYERS = ("marshal", "client", "server")
# Of g++ alone, or what this script has its own way for.
DROPPED = re.compile(r"-fpch-preprocess|-Winvalid-pch|-fPI[CE]|-O\d|-fmacro-prefix-map=.*")
WARNINGS = ["-Wthread-safety", "-Werror", "-ferror-limit=100"]


@dataclass
class Unit:
    name: str
    sources: list[Path]
    definitions: list[str]
    flags: list[str]


def flags_of(command: str) -> tuple[list[str], list[str]]:
    """Those for clang, and the definitions, which are written into the unit: the precompiled
    header was made without those that only one file has."""
    words = shlex.split(command)[1:]
    flags, definitions = ["-fPIC"], []
    place = 0
    while place < len(words):
        word = words[place]
        place += 1
        if word in {"-o", "-include", "-c"}:
            place += 1
        elif word.startswith("-D"):
            definitions.append(word[2:])
        elif not DROPPED.fullmatch(word):
            flags.append(word)
            if word == "-isystem":
                flags.append(words[place])
                place += 1
    return flags, definitions


def sources_of(compiled: Path) -> list[Path]:
    """Itself, or what a unit of cmake's includes (TORCH_REMOTE_UNITY); only those of src/."""
    found = [compiled]
    if compiled.parent.name == "Unity" and compiled.exists():
        found = [Path(name) for name in re.findall(r'#include "([^"]+)"', compiled.read_text())]
    return [source for source in found if source.is_relative_to(ROOT / "src")]


def units(each: bool) -> list[Unit]:
    """One for each folder, and for the files with flags of their own; or one for `each` file."""
    grouped: dict[tuple[str, str, str], list[Path]] = defaultdict(list)
    for entry in json.loads((BUILT / "compile_commands.json").read_text()):
        flags, definitions = flags_of(entry["command"])
        for source in sources_of(Path(entry["file"])):
            folder = source.relative_to(ROOT / "src").parent
            if folder.parts[:1] and folder.parts[0] in LAYERS and source.name != "main.cpp":
                name = "-".join([*folder.parts, *([source.stem] if each else [])])
                key = name, json.dumps(flags), json.dumps(definitions)
                grouped[key].append(source)
    return [
        Unit(
            name if each or len(sources) > 1 else f"{name}-{sources[0].stem}",
            sorted(sources),
            json.loads(definitions),
            json.loads(flags),
        )
        for (name, flags, definitions), sources in sorted(grouped.items())
    ]


def run(words: list[str]) -> str:
    done = subprocess.run(words, capture_output=True, text=True)
    return done.stderr if done.returncode else ""


def defined(definitions: list[str]) -> str:
    return "".join(f"#define {text.replace('=', ' ', 1)}\n" for text in definitions)


def precompile(flags: list[str], definitions: list[str]) -> Path:
    """torch's headers, as the build precompiles them."""
    header = BUILT / "src/CMakeFiles/torch_remote_pch.dir/cmake_pch.hxx"
    text = defined(definitions) + header.read_text()
    (HERE / "torch.h").write_text(text.replace("#pragma GCC system_header", ""))
    made = HERE / "torch.pch"
    source = str(HERE / "torch.h")
    errors = run([CLANG, *flags, "-w", "-x", "c++-header", source, "-o", str(made)])
    if errors:
        sys.exit(errors)
    return made


def check(unit: Unit, pch: Path) -> str:
    source = HERE / f"{unit.name}.cpp"
    includes = "".join(f'#include "{path}"\n' for path in unit.sources)
    source.write_text(defined(unit.definitions) + includes)
    words = [CLANG, *unit.flags, *WARNINGS, "-fsyntax-only", "-include-pch", str(pch), str(source)]
    return run(words)


def main() -> int:
    HERE.mkdir(parents=True, exist_ok=True)
    asked = set(sys.argv[1:])
    each = "--each" in asked
    asked -= {"--each"}
    found = [unit for unit in units(each) if not asked or unit.name in asked]
    if not found:
        print(f"thread safety: build/release compiles no such unit: {' '.join(asked)}")
        return 1
    largest = max(found, key=lambda unit: len(unit.sources))
    pch = precompile(largest.flags, largest.definitions)
    with ThreadPoolExecutor(int(os.environ.get("JOBS", "1"))) as pool:
        errors = list(pool.map(lambda unit: check(unit, pch), found))
    print("\n".join(filter(None, errors)), end="")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"thread safety: {sum(len(unit.sources) for unit in found)} files of {len(found)} units, "
        f"{used.ru_utime + used.ru_stime:.0f} s of CPU"
    )
    return 1 if any(errors) else 0


if __name__ == "__main__":
    sys.exit(main())
