#!/usr/bin/env python3
"""Keeps the table of promises and tests in docs/security.md true.

A test that shows a promise of docs/security.md has a comment in the line above it that says which:
`// Promise 3a.` above TEST, `# Promise 3a, 7.` above def (and above its decorators). This script
fails when a comment names a promise that the document does not have, when a promise has no test,
and when the table, or the list of the tests in tests/promises.md, is not what the comments say.
`--write` writes both.
"""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs/security.md"
LIST = ROOT / "tests/promises.md"
BEGIN, END = "<!-- tools/check_promises.py --write -->\n", "<!-- end -->\n"

COMMENT = re.compile(r"^\s*(?://|#) Promises? (?P<ids>\d+[a-z]?(?:, \d+[a-z]?)*)\.\n", re.M)
CPP_TEST = re.compile(r"\s*(?:TEST|TEST_F|TEST_P|TYPED_TEST)\((\w+),\s*(\w+)\)")
PYTHON_TEST = re.compile(r"(?:\s*@[^\n]*(?:\n[ \t)\]}][^\n]*)*\n)*\s*(?:async )?def (test_\w+)\(")
PROMISE = re.compile(r"^- \*\*(\d+[a-z]?)\. ([^*]+)\*\*", re.M)


def sort_key(promise: str) -> tuple[int, str]:
    digits = re.match(r"\d+", promise)
    assert digits
    return int(digits.group()), promise


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def test_files() -> list[Path]:
    cpp = sorted((ROOT / "tests/cpp").rglob("*.cpp"))
    return cpp + sorted((ROOT / "tests").rglob("test_*.py"))


def list_of(names: dict[str, list[str]], promises: dict[str, str]) -> str:
    """The content of tests/promises.md."""
    lines = ["# Which tests show which promise", ""]
    lines += ["tools/check_promises.py writes this, for the promises of docs/security.md.", ""]
    for promise in sorted(promises, key=sort_key):
        lines += [f"## {promise} {promises[promise]}", ""]
        lines += [f"- {name}" for name in names[promise]] + [""]
    return "\n".join(lines[:-1]) + "\n"


def main() -> int:
    text = DOCUMENT.read_text()
    promises = {number: title.strip(" .") for number, title in PROMISE.findall(text)}
    shown: dict[str, Counter[str]] = defaultdict(Counter)
    names: dict[str, list[str]] = defaultdict(list)
    bad = []
    for path in test_files():
        source, name = path.read_text(), str(path.relative_to(ROOT))
        test = CPP_TEST if path.suffix == ".cpp" else PYTHON_TEST
        for comment in COMMENT.finditer(source):
            line = source.count("\n", 0, comment.start()) + 1
            found = test.match(source, comment.end())
            if found is None:
                bad.append(f"{name}:{line}: no test follows this comment about a promise")
            for promise in comment["ids"].split(", "):
                shown[promise][name] += 1
                if found is not None:
                    names[promise].append(f"`{'.'.join(found.groups())}`")
                if promise not in promises:
                    bad.append(f"{name}:{line}: docs/security.md has no promise {promise}")
    bad += [f"docs/security.md: promise {each} has no test" for each in promises if not shown[each]]

    rows = ["| promise | tests | in the folders of `tests` |", "| --- | --- | --- |"]
    for promise in sorted(promises, key=sort_key):
        folders = sorted({Path(name).relative_to("tests").parent for name in shown[promise]})
        where = ", ".join(f"`{folder}`" for folder in folders)
        count = sum(shown[promise].values())
        rows.append(f"| {promise} | {count} | {where} |")
    table = "\n".join(rows) + "\n"
    before, _, rest = text.partition(BEGIN)
    old, _, after = rest.partition(END)
    tests = list_of(names, promises)
    if "--write" in sys.argv[1:]:
        DOCUMENT.write_text(f"{before}{BEGIN}{table}{END}{after}")
        LIST.write_text(tests)
    for path, is_old in ((DOCUMENT, old != table), (LIST, read(LIST) != tests)):
        if is_old and "--write" not in sys.argv[1:]:
            name = path.relative_to(ROOT)
            bad.append(f"{name}: the table of promises is old: tools/check_promises.py --write")
    count = sum(sum(files.values()) for files in shown.values())
    print("\n".join(bad) if bad else f"promises: {len(promises)}, shown by {count} tests")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
