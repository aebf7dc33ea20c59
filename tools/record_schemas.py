#!/usr/bin/env python3
"""Records the operators of the installed torch as tests/golden/schemas-MINOR.txt.gz.

Run it with a Python that has the wanted version. `serve --schemas` takes the unpacked file: a line
"# torch VERSION", then the sorted schemas of `aten`, one a line.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import torch

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"


def schemas() -> list[str]:
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
    split = [name.partition(".") for name in names]
    return sorted(str(torch._C._get_schema(name, overload)) for name, _, overload in split)


def main() -> None:
    version = torch.__version__.partition("+")[0]
    lines = [f"# torch {version}", *schemas()]
    GOLDEN.mkdir(exist_ok=True)
    path = GOLDEN / f"schemas-{'.'.join(version.split('.')[:2])}.txt.gz"
    path.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode(), mtime=0))
    print(f"{path.name}: torch {version}, {len(lines) - 1} operators")


if __name__ == "__main__":
    main()
