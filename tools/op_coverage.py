#!/usr/bin/env python3
"""Writes docs/operators.md: what each operator does on a remote device, and where it waits.

The facts come from the built extension (`torch_remote._C.operator_facts`), which reads the same
table as registration and calls (`src/client/operators/operator_table.h`). `--check` only says
whether the file is up to date.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from pathlib import Path

import torch

import torch_remote

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "operators.md"

# route, inference → heading, what it means
GROUPS = {
    ("sent", "shape"): (
        "Sent; a C++ shape function of ours tells the result",
        "For what it does not know it declines, and the second word of the column *told by* "
        "answers; only then may the call wait.",
    ),
    ("sent", "meta"): (
        "Sent; PyTorch's C++ shape code tells the result",
        "`at::meta::…`, called directly. Structured operators end here too, as their `out` form.",
    ),
    ("sent", "arguments"): (
        "Sent; the result is an argument",
        "In-place operators and those that return nothing: there is nothing to tell, "
        "unless the lists do not fit each other.",
    ),
    ("sent", "python"): (
        "Sent; PyTorch's Meta kernel tells the result",
        "Once for each signature, mostly in Python: some 0.1 to 1 ms. "
        "If it fails, the server is asked.",
    ),
    ("sent", "server"): (
        "Sent; the server tells the result",
        "*always*: data decides what comes out. "
        "*first*: the first call of a signature waits, later ones do not.",
    ),
    ("view", ""): ("Views and metadata", "Made on this side; nothing is sent."),
    ("kernel", ""): (
        "Kernels of the client",
        "Factories, copies and reads. A copy waits when the other side is the CPU.",
    ),
    ("branch", ""): (
        "Composed as on the server's kind of device",
        "The client takes the branch that the server's device would take.",
    ),
}
LISTS = {
    "structured": (
        "Structured",
        "PyTorch shapes the result here in C++ and calls the `out` form: one call.",
    ),
    "composed": (
        "Composed of others",
        "PyTorch's own composition runs here, on remote tensors. "
        "It waits where one of its parts does.",
    ),
    "refused": (
        "Refused",
        "They make quantized or mkldnn tensors, or PyTorch's composition reads memory, which is "
        "on the server: `NotImplementedError` at the call.",
    ),
}
HEAD = """\
# Operators

Written by `tools/op_coverage.py` from the built extension; do not edit. torch {version}, \
every operator of `aten` that takes a tensor or makes one.

*Waits*: never, at the first call of a signature (the answer is kept), or always, which is also \
said where only some inputs make it wait (`index` with a mask). `check_errors=True` always waits. \
An operator's overloads are on one line where they do the same;
`–` is the overload without a name. Other libraries' operators are told by their Meta kernel \
if they have one, else by the server, always.

| what happens | operators | wait always | wait first |
| --- | --- | --- | --- |
"""

Fact = tuple[str, str, str, str, str]


def overloads_of(names: list[str]) -> dict[str, list[str]]:
    """aten::add.Tensor, aten::add.out → add: [Tensor, out]"""
    grouped: dict[str, list[str]] = defaultdict(list)
    for name in names:
        base, _, overload = name.removeprefix("aten::").partition(".")
        grouped[base].append(overload or "–")
    return grouped


def group_of(fact: Fact) -> tuple[str, str]:
    _, route, inference, *_ = fact
    return route, inference.partition(",")[0]


def table(facts: list[Fact]) -> list[str]:
    """One line for each operator and way of doing it."""
    rows: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for name, _, inference, waits, _ in facts:
        base, _, overload = name.removeprefix("aten::").partition(".")
        rows[base, inference, waits].append(overload or "–")
    lines = ["| operator | overloads | told by | waits |", "| --- | --- | --- | --- |"]
    for (base, inference, waits), overloads in sorted(rows.items()):
        told = inference or "–"
        lines.append(f"| `{base}` | {', '.join(overloads)} | {told} | {waits} |")
    return lines


def words_of(names: list[str]) -> list[str]:
    """`add` (Tensor, out), …"""
    return [
        f"`{base}`" + (f" ({', '.join(overloads)})" if overloads != ["–"] else "")
        for base, overloads in sorted(overloads_of(names).items())
    ]


def reasons(facts: list[Fact]) -> str:
    """The section that says why operators are special."""
    rows: dict[str, list[str]] = defaultdict(list)
    for name, *_, reason in facts:
        for line in reason.splitlines():
            rows[line].append(name)
    lines = ["\n## Why some are special\n", "Those that do not go the usual way.\n"]
    lines += ["| why | operators |", "| --- | --- |"]
    lines += [f"| {why} | {', '.join(words_of(names))} |" for why, names in sorted(rows.items())]
    return "\n".join(lines)


def paragraph(facts: list[Fact]) -> list[str]:
    lines, line = [], ""
    for word in words_of([fact[0] for fact in facts]):
        if len(line) + len(word) > 150:
            lines.append(line.rstrip())
            line = ""
        line += word + ", "
    return [*lines, line.rstrip(", ") + "."]


def document() -> str:
    facts = torch_remote._C.operator_facts()
    groups: dict[tuple[str, str], list[Fact]] = defaultdict(list)
    for fact in facts:
        groups[group_of(fact)].append(fact)
    titles = {**GROUPS, **{(route, ""): text for route, text in LISTS.items()}}
    unknown = set(groups) - set(titles)
    if unknown:
        raise SystemExit(f"no heading for {sorted(unknown)}")
    summary, sections = [], []
    for key, (title, meaning) in titles.items():
        waits = Counter(fact[3] for fact in groups[key])
        summary.append(
            f"| {title} | {len(groups[key])} | {waits['always'] or '–'} | {waits['first'] or '–'} |"
        )
        body = paragraph(groups[key]) if key[0] in LISTS else table(groups[key])
        sections.append("\n".join([f"\n## {title}\n", meaning, "", *body]))
    summary.append(f"| in all | {len(facts)} | | |")
    version = torch.__version__.partition("+")[0]
    return HEAD.format(version=version) + "\n".join([*summary, *sections, reasons(facts)]) + "\n"


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
