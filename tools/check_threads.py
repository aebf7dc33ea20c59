#!/usr/bin/env python3
"""Fail when docs/threading.md and the sources name different locks or threads.

Locks: every Mutex of src/ and every lock of python/. Its name is `Class::member` in C++, or
`function()` where it is a static of a function; `Class.member`, `function()` or the variable in
Python. Each is named in the part that is written by hand, and that part names no other; where a
file stands behind the name, it is the lock's. `--write` makes the table at the end of the page:
each Mutex with its file and the members that GUARDED_BY names.

Threads: a name that a thread is given in C++ is on the page, and the page has no other `tr-` name.
The same for Python; there a thread without a name counts by its file.
"""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "threading.md"
HEAD = "<!-- Made by tools/check_threads.py --write. -->"

MUTEX = re.compile(
    r"\bMutex\s+(?:mutable\s+)?(\w+)\s*;|\bauto\*\s*(?:const\s+)?(\w+) = new Mutex\b"
)
GUARDED = re.compile(r"(\w+)\s+GUARDED_BY\((\w+)\)")
NAMED_THREAD = re.compile(r"\b(?:name_this_thread|begin_worker_thread)\(\"([^\"]+)\"\)")
SCOPE = re.compile(r"\b(?:class|struct)\s+(?:[A-Z_]+\([^)]*\)\s+)?([\w:]+)[^;(]*$")
FUNCTION = re.compile(r"([\w:~]+)\s*\([^;]*\)[^;()]*$")
PYTHON_LOCKS = {"Lock", "RLock", "Condition", "Semaphore"}


@dataclass
class Lock:
    name: str
    file: str
    guards: list[str] = field(default_factory=list)


def without_comments(text: str) -> str:
    text = re.sub(r"//[^\n]*", "", text)
    return re.sub(r'"(?:\\.|[^"\\\n])*"', '""', text)


def innermost(stack: list[str]) -> str:
    return next((name for name in reversed(stack) if name), "")


def scopes(text: str) -> list[tuple[str, str]]:
    """Pairs of a scope and a statement in it: classes by name, functions as `name()`."""
    found = []
    stack: list[str] = []
    statement = ""
    for char in text:
        if char == "{":
            klass = SCOPE.search(statement)
            function = FUNCTION.search(statement)
            name = klass[1] if klass else f"{function[1]}()" if function else ""
            found.append((innermost(stack), statement))
            stack.append("" if statement.lstrip().startswith("namespace") else name)
            statement = ""
        elif char in ";}":
            found.append((innermost(stack), statement + char))
            if char == "}" and stack:
                stack.pop()
            statement = ""
        else:
            statement += char
    return found


def locks_of_source(path: Path) -> list[Lock]:
    file = str(path.relative_to(ROOT / "src"))
    locks: dict[tuple[str, str], Lock] = {}
    guarded: list[tuple[str, str, str]] = []
    for owner, statement in scopes(without_comments(path.read_text())):
        if mutex := MUTEX.search(statement):
            is_static = mutex[2] is not None
            name = owner.rpartition("::")[2] if is_static else f"{owner}::{mutex[1]}"
            locks[owner, mutex[1] or mutex[2]] = Lock(name, file)
        guarded += [(owner, *pair) for pair in GUARDED.findall(statement)]
    for owner, member, mutex_name in guarded:
        if lock := locks.get((owner, mutex_name)):
            lock.guards.append(member)
    return list(locks.values())


def mutexes() -> list[Lock]:
    files = [*(ROOT / "src").rglob("*.h"), *(ROOT / "src").rglob("*.cpp")]
    files.remove(ROOT / "src/base/mutex.h")
    return [lock for path in sorted(files) for lock in locks_of_source(path)]


def called(call: ast.expr) -> str:
    if not isinstance(call, ast.Call):
        return ""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


class PythonFile(ast.NodeVisitor):
    """The locks and threads that a file makes."""

    def __init__(self, path: Path) -> None:
        self.file = str(path.relative_to(ROOT))
        self.owners: list[str] = []
        self.locks: list[Lock] = []
        self.threads: list[str] = []
        self.visit(ast.parse(path.read_text()))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.inside(node.name, node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.inside(f"{node.name}()", node)

    def inside(self, owner: str, node: ast.AST) -> None:
        self.owners.append(owner)
        self.generic_visit(node)
        self.owners.pop()

    def visit_Assign(self, node: ast.Assign) -> None:
        if called(node.value) in PYTHON_LOCKS:
            target = ast.unparse(node.targets[0])
            if target.startswith("self."):
                klass = next(name for name in reversed(self.owners) if not name.endswith(")"))
                target = target.replace("self", klass, 1)
            elif self.owners:
                target = self.owners[-1]
            self.locks.append(Lock(target, self.file))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if called(node) in {"Thread", "Timer", "ThreadPoolExecutor"}:
            names = [k.value for k in node.keywords if k.arg in {"name", "thread_name_prefix"}]
            name = names[0].value if names and isinstance(names[0], ast.Constant) else self.file
            self.threads.append(str(name))
        self.generic_visit(node)


def table(locks: list[Lock]) -> str:
    rows = [
        f"| `{lock.name}` | `{lock.file}` | {', '.join(lock.guards) or '–'} |"
        for lock in sorted(locks, key=lambda lock: (lock.file, lock.name))
    ]
    return "\n".join([HEAD, "", "| lock | file | members |", "| --- | --- | --- |", *rows, ""])


def check_locks(text: str, locks: list[Lock]) -> list[str]:
    """`text` is what was written by hand."""
    bad = []
    files: dict[str, list[str]] = {}
    for lock in locks:
        files.setdefault(lock.name, []).append(lock.file)
        if f"`{lock.name}`" not in text:
            bad.append(f"the lock {lock.name} of {lock.file} is missing")
    quoted = r"`([\w:.]+(?:\(\))?)`(?: \(`([\w/.]+)`\))?"
    for name, file in re.findall(quoted, text):
        if re.search(r"(?:::|\.)\w*(?:mutex_?|opening_)$", name) and name not in files:
            bad.append(f"no lock {name}")
        if file and name in files and file not in files[name]:
            bad.append(f"{name} is in {' and '.join(files[name])}, not in {file}")
    return bad


def check_thread_names(text: str, names: set[str]) -> list[str]:
    bad = [f"the thread {name} is missing" for name in names if f"`{name}`" not in text]
    known = set(re.findall(r"`(tr-[\w-]+)`", text))
    return sorted(bad) + [f"no thread {name}" for name in sorted(known - names)]


def main() -> int:
    locks = mutexes()
    names = {
        name
        for path in sorted((ROOT / "src").rglob("*.cpp"))
        for name in NAMED_THREAD.findall(path.read_text())
    }
    python = [PythonFile(path) for path in sorted((ROOT / "python").rglob("*.py"))]
    names.update(name for file in python for name in file.threads)
    by_hand, head, made = PAGE.read_text().partition(HEAD)
    if "--write" in sys.argv[1:]:
        PAGE.write_text(by_hand + table(locks))
        head, made = HEAD, table(locks).removeprefix(HEAD)
    bad = check_locks(by_hand, locks + [lock for file in python for lock in file.locks])
    bad += check_thread_names(by_hand, names)
    if head + made != table(locks):
        bad.append("the table at the end is old: run tools/check_threads.py --write")
    for line in bad:
        print(f"docs/threading.md: {line}")
    if not bad:
        print(f"threading: {len(locks)} mutexes and {len(names)} names of threads, all on the page")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
