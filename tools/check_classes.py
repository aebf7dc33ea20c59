#!/usr/bin/env python3
"""Fail when a class in a header of src/ has more than 20 public functions.

A rough parser: it removes comments, strings and bodies, then counts what has a name and an argument
list in the public parts of a class. Overloads count; constructors, destructors, operators and
overrides, which another class has declared, do not.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

MOST = 20
SRC = Path(__file__).resolve().parent.parent / "src"

INITIALIZER = re.compile(r"=\s*\{[^{}]*\}")
COMMENT, MACRO = r"//[^\n]*|/\*.*?\*/", r"^\s*#[^\n]*"
STRING = r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])\''
NOISE = re.compile(f"{COMMENT}|{STRING}|{MACRO}", re.S | re.M)
CLASS = re.compile(r"\b(class|struct)\s+([\w:]*\w)\s*(?:final\s*)?(?::[^{};]*)?\{")
ACCESS = re.compile(r"\b(public|private|protected)\s*:(?!:)")
# Thread-safety macros, and types of variables, which have arguments but are no functions.
ANNOTATION = re.compile(r"\b(?:GUARDED_BY|REQUIRES|EXCLUDES|decltype|alignas)\s*\([^()]*\)")
FUNCTION = re.compile(r"([~\w]+)\s*\(")
TEMPLATE_ARGUMENTS = re.compile(r"<[^<>]*>")


def closing(text: str, opening: int) -> int:
    """The position of the brace that closes the one at `opening`."""
    depth = 0
    for at in range(opening, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return at
    return len(text)


def without_bodies(text: str) -> str:
    """The declarations at the top level of a class, a ';' in place of every body."""
    kept, at = [], 0
    while (opening := text.find("{", at)) >= 0:
        kept.append(text[at:opening] + ";")
        at = closing(text, opening) + 1
    return "".join(kept) + text[at:]


def without_templates(text: str) -> str:
    while (shorter := TEMPLATE_ARGUMENTS.sub("", text)) != text:
        text = shorter
    return text


def public_functions(kind: str, name: str, body: str) -> list[str]:
    parts = ACCESS.split(ANNOTATION.sub("", without_bodies(body)))
    access = ["public" if kind == "struct" else "private", *parts[1::2]]
    public = "".join(part for part, who in zip(parts[::2], access, strict=True) if who == "public")
    names = []
    for declaration in without_templates(public).split(";"):
        is_counted = not re.search(r"\b(operator|override|using|friend)\b", declaration)
        found = FUNCTION.search(declaration.split("=")[0])
        if found and is_counted and found[1].lstrip("~") != name.rsplit("::", 1)[-1]:
            names.append(found[1])
    return names


def classes(text: str) -> Iterator[tuple[str, list[str]]]:
    text = INITIALIZER.sub("", NOISE.sub("", text))
    for match in CLASS.finditer(text):
        body = text[match.end() : closing(text, match.end() - 1)]
        yield match[2], public_functions(match[1], match[2], body)


def main() -> int:
    found = [
        (path.relative_to(SRC.parent), name, functions)
        for path in sorted(SRC.rglob("*.h"))
        for name, functions in classes(path.read_text())
    ]
    bad = [
        f"{path}: {name} has {len(functions)} public functions, at most {MOST} are allowed: "
        + ", ".join(functions)
        for path, name, functions in found
        if len(functions) > MOST
    ]
    most = max(len(functions) for _, _, functions in found)
    print("\n".join(bad) if bad else f"classes: {len(found)}, at most {most} public functions each")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
