#!/usr/bin/env python3
"""Fail when a document names a file, an identifier or a make target that is no longer there.

Checked in every *.md at the top, in docs/ and in src/, between backticks:
  `path/to/file.ext`   exists: from the top, from src/, or from the document's folder
  `name()`             is a word of our sources, unless it is qualified as another project's
  `make target`        is in the Makefile
  `test_name`, `Suite.Name`    is a test
And in the sources and scripts: a document that a comment sends the reader to exists.
Decision records are about the past and are not checked.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("src/**/*.md")]
FOLDERS = ("src", "python", "tools", "tests", "examples", "benchmarks")
SOURCES = [
    path
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in {".h", ".cpp", ".py", ".sh"} and path.is_file()
]
# Files of torch, and files that only a build leaves.
FOREIGN_PATH = re.compile(r"(torch|torchgen|ATen|c10|aten|build|site-packages)/")
FOREIGN_NAME = re.compile(r"(torch|at|c10|std|os|np|numpy)(\.|::)")


def check_document(
    doc: Path, words: set[str], targets: set[str], tests: set[tuple[str, str]]
) -> list[str]:
    bad = []
    for quoted in re.findall(r"`([^`\n]+)`", doc.read_text()):
        is_path = re.fullmatch(r"[\w.-]+/[\w./-]+\.\w+", quoted) and not FOREIGN_PATH.match(quoted)
        places = (ROOT, ROOT / "src", doc.parent)
        if is_path and not any((place / quoted).exists() for place in places):
            bad.append(f"no file {quoted}")
        call = re.fullmatch(r"(?:[\w:.]*[:.])?(\w+)\(\)", quoted)
        if call and call.group(1) not in words and not FOREIGN_NAME.match(quoted):
            bad.append(f"no {quoted} in the sources")
        if re.fullmatch(r"test_\w+", quoted) and quoted not in words:
            bad.append(f"no test {quoted}")
        test = re.fullmatch(r"([A-Z]\w*[a-z]\w*)\.([A-Z]\w*[a-z]\w*)", quoted)
        if test and test.groups() not in tests:
            bad.append(f"no test {quoted}")
        target = re.match(r"make ([a-z][a-z-]*)", quoted)
        if target and target.group(1) not in targets:
            bad.append(f"no target {target.group(1)} in the Makefile")
    return [f"{doc.relative_to(ROOT)}: {what}" for what in bad]


def main() -> int:
    texts = {path: path.read_text() for path in SOURCES}
    words = set(re.findall(r"\w+", "\n".join(texts.values())))
    tests = {
        test
        for text in texts.values()
        for test in re.findall(r"^TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", text, re.M)
    }
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    docs = [doc for doc in DOCS if "decisions" not in doc.parts]
    bad = [line for doc in docs for line in check_document(doc, words, targets, tests)]
    for path, text in texts.items():
        for name in re.findall(r"\bdocs/[\w/-]+\.md\b", text):
            if not (ROOT / name).exists():
                bad.append(f"{path.relative_to(ROOT)}: no file {name}")
    print("\n".join(bad) if bad else f"docs: {len(docs)} files, every name found")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
