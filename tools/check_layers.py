#!/usr/bin/env python3
"""Fail when a file includes a layer that its folder may not see, or modules include each other.

The table is the architecture: a folder may include itself and what is listed for it, and the rows
are in dependency order, so a row can only name rows above it (no cycles by construction). A
sub-folder with a row of its own is a layer of its own; without one it belongs to the folder above.

Within a folder: a module is x.h with x.cpp and x_impl.h, and no chain of includes leads from one
module through another back to it.

Bytes of messages: only wire/ writes and reads them. Elsewhere nothing calls the functions of
wire::Writer and wire::Reader that move single values, and only what sorts received messages, and
the server's handlers of messages, names a wire::Tag.

Operating systems: headers that only one of them has are included only by files whose names end with
_linux or _macos. The server may include those of Linux everywhere: it has no other system.

Also: every folder of src/ has a row, and every sub-folder beside one that has a row; every "quoted"
include is a file there, written from src/; and the macros that register something with PyTorch when
a library is loaded stand in files named register.cpp only.
"""

from __future__ import annotations

import re
import sys
from collections import deque
from pathlib import Path, PurePosixPath


def rooms(folder: str, names: str) -> list[str]:
    """Sub-folders of a folder, as rows."""
    return [f"{folder}/{name}" for name in names.split()]


TORCH = ["base", "wire", "marshal", "torch"]
ALLOWED = {
    "base": [],
    "wire": ["base"],
    "transport": ["base"],
    "marshal": ["base", "wire", "torch"],
    "redirect": ["base", "torch", "python"],
    "client/capture": TORCH,
    "client/operators": TORCH,
    "client/process": [*TORCH, *rooms("client", "capture operators")],
    "client/link": [*TORCH, "transport", "client/process"],
    "client/session": [*TORCH, "transport", *rooms("client", "capture operators process link")],
    "client/machines": [*TORCH, *rooms("client", "capture process link session")],
    "client/memory": [*TORCH, *rooms("client", "capture process session machines")],
    "client/programs": [
        *TORCH,
        *rooms("client", "capture operators process link session machines memory"),
    ],
    "client/shapes": [*TORCH, *rooms("client", "capture operators process session memory")],
    "client/call": [
        *TORCH,
        *rooms("client", "capture operators process link session machines memory shapes programs"),
    ],
    "client/backend": [
        *TORCH,
        "transport",
        *rooms("client", "capture operators process session machines memory programs call"),
    ],
    "client/kernels": [
        *TORCH,
        *rooms("client", "capture operators process session machines memory call backend"),
    ],
    "client": [
        *TORCH,
        *rooms("client", "capture operators process session machines memory shapes programs"),
        *rooms("client", "call backend kernels"),
    ],
    "server/cache": ["base", "wire"],
    "server/files": ["base", "wire"],
    "server/device": TORCH,
    "server/bytes": [*TORCH, "transport", *rooms("server", "cache")],
    "server/operators": TORCH,
    "server/executor": [*TORCH, "transport", *rooms("server", "device bytes operators")],
    "server/groups": [*TORCH, "transport", *rooms("server", "device bytes executor")],
    "server/handlers": [
        *TORCH,
        "transport",
        *rooms("server", "cache files device bytes operators executor groups"),
    ],
    "server/session": [
        *TORCH,
        "transport",
        *rooms("server", "cache files device bytes operators executor groups handlers"),
    ],
    "server/listener": [*TORCH, "transport", *rooms("server", "cache session")],
    "server": [
        *TORCH,
        "transport",
        *rooms("server", "cache files device operators executor session listener"),
    ],
    "bindings": [
        *["base", "redirect", "torch", "python", "pybind11", "client"],
        *rooms("client", "capture operators process link session machines memory programs call"),
        *rooms("client", "backend"),
    ],
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

# Headers that only one system has.
HEADERS_OF = {
    "linux": re.compile(
        r"(linux|asm|netpacket|netlink)/|(seccomp|features|malloc|endian|byteswap|error)\.h$"
        r"|sys/(auxv|epoll|eventfd|fanotify|inotify|personality|prctl|ptrace|sendfile|signalfd"
        r"|sysinfo|sysmacros|timerfd|vfs)\.h$"
    ),
    "macos": re.compile(
        r"(mach|mach-o|libkern|os|dispatch|CoreFoundation|Foundation)/"
        r"|(crt_externs|libproc|Availability|TargetConditionals|AvailabilityMacros)\.h$"
        r"|sys/(event|kern_control|proc_info|sysctl|ucred)\.h$"
    ),
}

# Bytes of messages, and the files outside wire/ that may have them.
VALUES = "u8|u32|u64|f64|varint|zigzag|raw|patch_u8"
RAW = re.compile(rf"\b\w+\.(?:{VALUES})\(|wire::(?:Tag::k|Message\b)")
TAG = "wire::Tag::k"
MAY_NAME_TAGS = "server/handlers"  # its files add their functions to a table by tag
MAY_BE_RAW = {
    "client/kernels/attention.cpp",  # the key of a cache, which is not sent
    "client/session/session.cpp",  # sorts what the server sends
}

SRC = Path(__file__).resolve().parent.parent / "src"


def row_of(file: str) -> str | None:
    """The row of a file of src/: that of its folder, else of the nearest folder above it."""
    return next((str(p) for p in PurePosixPath(file).parents if str(p) in ALLOWED), None)


def layer_of(header: str) -> str | None:
    external = (name for pattern, name in EXTERNAL if re.match(pattern, header))
    return row_of(header) or next(external, None)


def check_table(src: Path) -> list[str]:
    rows = list(ALLOWED)
    bad = [
        f"table: {row} names {layer} below it"
        for i, row in enumerate(rows)
        for layer in ALLOWED[row]
        if layer in rows and rows.index(layer) >= i
    ]
    folders = [p.relative_to(src).as_posix() for p in sorted(src.rglob("*")) if p.is_dir()]
    divided = {str(PurePosixPath(row).parent) for row in rows}  # "." is: it has the top folders
    return bad + [
        f"table: src/{name} has no row"
        for name in folders
        if name not in ALLOWED and str(PurePosixPath(name).parent) in divided
    ]


def check_file(src: Path, path: Path) -> list[str]:
    name, layer = path.relative_to(src.parent), row_of(path.relative_to(src).as_posix())
    text = path.read_text()
    bad = []
    for quote, header in INCLUDE.findall(text):
        target = layer_of(header)
        if target and target != layer and target not in ALLOWED.get(layer or "", []):
            bad.append(f"{name}: {layer} may not include {header}")
        if quote == '"' and not (src / header).exists():
            bad.append(f'{name}: no file src/{header}; write "folder/file.h", and <…> for others\'')
        bad += [
            f"{name}: {header} is {system} only: include it in a file named *_{system}"
            for system, pattern in HEADERS_OF.items()
            if quote == "<" and pattern.match(header) and not is_for(system, path, layer)
        ]
    file = path.relative_to(src).as_posix()
    if layer != "wire" and file not in MAY_BE_RAW:
        bad += [
            f"{name}: {found} belongs in wire/"
            for found in RAW.findall(text)
            if found != TAG or layer != MAY_NAME_TAGS
        ]
    if path.name != "register.cpp":
        bad += [
            f"{name}: {macro} belongs in a register.cpp" for macro in REGISTRATION.findall(text)
        ]
    return bad


def is_for(system: str, path: Path, layer: str | None) -> bool:
    """Whether a file is compiled on this system only."""
    is_server = (layer or "").split("/")[0] == "server"
    return path.stem.endswith(f"_{system}") or (is_server and system == "linux")


def module_of(file: str) -> str:
    return file.rsplit(".", 1)[0].removesuffix("_impl")


def included_modules(src: Path, files: list[Path]) -> dict[str, list[str]]:
    """The other modules of src/ that each module includes, in the order of their names."""
    found: dict[str, set[str]] = {}
    for path in files:
        module = module_of(path.relative_to(src).as_posix())
        headers = [header for quote, header in INCLUDE.findall(path.read_text()) if quote == '"']
        found.setdefault(module, set()).update({module_of(header) for header in headers} - {module})
    return {module: sorted(included) for module, included in found.items()}


def shortest_cycle(graph: dict[str, list[str]], start: str) -> list[str]:
    """The modules on a shortest way from `start` back to it; empty when there is none."""
    came_from: dict[str, str] = {}
    queue = deque([start])
    while queue:
        module = queue.popleft()
        for included in graph.get(module, []):
            if included in came_from:
                continue
            came_from[included] = module
            if included == start:
                cycle = [module]
                while cycle[0] != start:
                    cycle.insert(0, came_from[cycle[0]])
                return cycle
            queue.append(included)
    return []


def check_cycles(src: Path, files: list[Path]) -> list[str]:
    """A shortest cycle through every module that is on one, each cycle once."""
    graph = included_modules(src, files)
    bad = set()
    for module in graph:
        cycle = shortest_cycle(graph, module)
        if cycle:
            first = cycle.index(min(cycle))
            bad.add(" -> ".join([*cycle[first:], *cycle[:first], cycle[first]]))
    return [f"include cycle: {path}" for path in sorted(bad)]


def check(src: Path) -> tuple[int, list[str]]:
    """How many files there are below src/, and what is wrong with them."""
    files = [p for p in sorted(src.glob("*/**/*")) if p.suffix in {".h", ".cpp"}]
    bad = [line for path in files for line in check_file(src, path)]
    return len(files), check_table(src) + bad + check_cycles(src, files)


def main() -> int:
    count, bad = check(SRC)
    print("\n".join(bad) if bad else f"layers: {count} files, no violation")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
