"""What the two runs of a suite, on the CPU and on `remote`, say: JUnit files, compared by test."""

from __future__ import annotations

import collections
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

DEVICES = ["cpu", "remote"]
OUTCOMES = {"skipped": "skipped", "failure": "failed", "error": "failed"}


class Result(NamedTuple):
    outcome: str  # "passed", "skipped", "failed" or "missing"
    message: str  # why it was skipped or failed


class Difference(NamedTuple):
    """Why some tests fail, or do not run, on `remote`, and pass on the CPU."""

    tests: str  # a regular expression for "suite Class.test"
    reason: str
    message: str = ""  # a regular expression for what the test says on `remote`


Results = dict[str, Result]


def run_pytest(
    arguments: Sequence[str], report: Path, *, cwd: Path, environment: Mapping[str, str]
) -> None:
    """Writes the JUnit file `report`, and beside it what pytest prints."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    report.unlink(missing_ok=True)
    log = report.with_suffix(".log")
    with log.open("w") as output:
        subprocess.run(
            [*command, f"--junitxml={report}"],
            cwd=cwd,
            env=dict(environment),
            stdout=output,
            stderr=output,
            check=False,
        )
    if not report.exists():
        sys.exit(f"The tests did not end: see {log}")


def read(report: Path, name_of: Callable[[str, str], str]) -> Results:
    """By `name_of(class, test)`, which both devices must have in common."""
    results: Results = {}
    for case in ElementTree.parse(report).iter("testcase"):
        owner = case.get("classname", "").rpartition(".")[2]
        name = name_of(owner, case.get("name", ""))
        kinds = [child for child in case if child.tag in OUTCOMES]
        # A test whose tear-down fails too has two entries.
        outcome = OUTCOMES[kinds[0].tag] if kinds else "passed"
        message = kinds[0].get("message", "") if kinds else ""
        if name not in results or results[name].outcome != "failed":
            results[name] = Result(outcome, message)
    return results


def compare(suite: str, cpu: Results, remote: Results, reasons: Sequence[Difference]) -> int:
    """Prints the counts of a suite and what differs; the number of tests without a reason."""
    for device, results in zip(DEVICES, (cpu, remote), strict=True):
        counts = collections.Counter(result.outcome for result in results.values())
        print(f"{suite:6} {device:6} " + ", ".join(f"{counts[o]} {o}" for o in sorted(counts)))
    missing = Result("missing", "not collected")
    explained: collections.Counter[str] = collections.Counter()
    unexplained = 0
    for test in sorted(cpu.keys() | remote.keys()):
        before, after = cpu.get(test, missing), remote.get(test, missing)
        if after.outcome == before.outcome:
            continue
        if after.outcome != "failed" and before.outcome != "passed":
            continue
        change = f"{before.outcome} → {after.outcome}"
        reason = reason_for(f"{suite} {test}", after, reasons)
        if reason is not None:
            explained[f"{change}: {reason}"] += 1
            continue
        unexplained += 1
        print(f"  {change}: {test}: NOT EXPLAINED: {first_line(after.message)[:200]}")
    for reason, count in sorted(explained.items()):
        print(f"  {count} {reason}")
    return unexplained


def reason_for(test: str, result: Result, reasons: Sequence[Difference]) -> str | None:
    for difference in reasons:
        if re.search(difference.tests, test) and re.search(difference.message, result.message):
            return difference.reason
    return None


def first_line(message: str) -> str:
    return message.strip().partition("\n")[0]
