#!/usr/bin/env python3
"""Writes docs/operators.md: which operators wait for the server, and which are special, and why.

The facts come from the built extension (`torch_remote._C.operator_facts`), which reads the same
table as registration and calls. `torch_remote.explain()` has them for every operator. `--check`
only says whether the file is up to date.
"""

from __future__ import annotations

import sys
import textwrap
from collections import Counter, defaultdict
from pathlib import Path

import torch

import torch_remote

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "operators.md"

# route, inference → what happens with such an operator
GROUPS = {
    ("sent", "shape"): "sent; a C++ shape function of ours predicts the result",
    ("sent", "meta"): "sent; PyTorch's C++ shape code predicts the result",
    ("sent", "arguments"): "sent; the result is an argument, or there is none",
    ("sent", "python"): "sent; PyTorch's Meta kernel predicts the result",
    ("sent", "server"): "sent; only the server knows the result",
    ("view", ""): "views and metadata: nothing is sent",
    ("kernel", ""): "kernels of the client: factories, copies, reads",
    ("branch", ""): "composed here as for the server's kind of device",
    ("structured", ""): "structured: sent as the `out` form",
    ("composed", ""): "composed here of other operators by PyTorch",
    ("refused", ""): "refused: `NotImplementedError` at the call",
}
HEAD = """\
# Operators

Made by `tools/op_coverage.py` from the built extension; do not edit. Counted with torch {version}:
every overload of `aten` that takes a tensor or makes one. For a single operator ask
`torch_remote.explain("mm")`: where it runs, who predicts its result, whether it waits, and why.

| what happens | overloads | always wait | wait the first time |
| --- | --- | --- | --- |
"""
WAITS = """
- *The first time*: the first call of a signature asks the server; the answer is kept.
- A Meta kernel runs once for each signature, mostly in Python: 0.1 to 1 ms. If it fails, the server
  is asked. If our shape function cannot predict a result, the Meta kernel or the server is asked.
- A composed operator waits where one of its parts waits.
- With `check_errors=True` an operator always waits.
- Operators of other libraries use their Meta kernel; those without one always wait.

## Operators that always wait

Some of them only for some inputs: `index` waits if an index is a mask, and copies wait if the other
side is the CPU. Overloads are in brackets where the plain one is not meant.
"""
SPECIAL = """
## Why some are special
"""

Fact = tuple[str, str, str, str, str]


def names_of(facts: list[Fact]) -> str:
    """`add`, `index` (Tensor), … ; the overloads only where the one without a name is not there."""
    overloads: dict[str, list[str]] = defaultdict(list)
    for name, *_ in facts:
        base, _, overload = name.removeprefix("aten::").partition(".")
        overloads[base].append(overload)
    return ", ".join(
        f"`{base}`" + ("" if "" in found else f" ({', '.join(found)})")
        for base, found in sorted(overloads.items())
    )


def wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 100, subsequent_indent=indent, break_on_hyphens=False)


def summary(facts: list[Fact]) -> list[str]:
    groups: dict[tuple[str, str], list[Fact]] = defaultdict(list)
    for fact in facts:
        groups[fact[1], fact[2].partition(",")[0]].append(fact)
    unknown = set(groups) - set(GROUPS)
    if unknown:
        raise SystemExit(f"no words for {sorted(unknown)}")
    rows = []
    for key, title in GROUPS.items():
        waits = Counter(fact[3] for fact in groups[key])
        counts = f"{waits['always'] or '–'} | {waits['first'] or '–'}"
        rows.append(f"| {title} | {len(groups[key])} | {counts} |")
    return [*rows, f"| in all | {len(facts)} | | |"]


def reasons(facts: list[Fact]) -> list[str]:
    found: dict[str, list[Fact]] = defaultdict(list)
    for fact in facts:
        for reason in fact[4].splitlines():
            found[reason].append(fact)
    return [wrapped(f"- **{why}**: {names_of(found[why])}", "  ") for why in sorted(found)]


def document() -> str:
    facts = torch_remote._C.operator_facts()
    head = HEAD.format(version=torch.__version__.partition("+")[0])
    waiting = wrapped(names_of([fact for fact in facts if fact[3] == "always"]) + ".")
    parts = [*summary(facts), WAITS, waiting, SPECIAL, *reasons(facts)]
    return head + "\n".join(parts) + "\n"


def main() -> int:
    text = document()
    if sys.argv[1:] == ["--check"]:
        is_current = DOCUMENT.exists() and DOCUMENT.read_text() == text
        print("docs/operators.md is " + ("up to date" if is_current else "not up to date"))
        return 0 if is_current else 1
    DOCUMENT.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
