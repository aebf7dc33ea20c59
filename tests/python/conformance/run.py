"""The conformance suite: every OpInfo of the installed torch, on the device and on the CPU.

    python tests/python/conformance/run.py [--op NAME] [--jobs 2] [--json FILE] [--all-dtypes]

Exits 1 on a failure or a skip that known_gaps.toml does not list, and on a listed gap that passes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import gaps
from pool import Answer, Pool

KNOWN_GAPS = Path(__file__).with_name("known_gaps.toml")
TIMEOUT_S = 20.0


class Report:
    """Judges answers against the known gaps, and prints."""

    def __init__(self, known: dict[gaps.Key, gaps.Gap], total: int, verbose: bool) -> None:
        self._known = known
        self._total = total
        self._verbose = verbose
        self._counts: dict[str, Counter[str]] = {}  # by variant
        self.records: list[dict[str, Any]] = []

    def add(self, case: dict[str, str], answer: Answer) -> None:
        verdict = self._judge(key_of(case), answer["status"])
        self._counts.setdefault(case["variant"], Counter())[verdict] += 1
        self.records.append(case | answer | {"verdict": verdict})
        name = " ".join(key_of(case))
        if verdict == "failed":
            print(f"FAILED {name}: {self._explain(answer)}", flush=True)
            if self._verbose and answer["details"]:
                print(answer["details"], flush=True)
        if len(self.records) % 100 == 0:
            print(f"... {len(self.records)} of {self._total}", flush=True)

    def _judge(self, key: gaps.Key, status: str) -> str:
        if key in self._known:
            return "failed" if status == "passed" else "gap"
        return "passed" if status == "passed" else "failed"

    def _explain(self, answer: Answer) -> str:
        if answer["status"] == "passed":
            return "passes, but is listed in known_gaps.toml: remove it there"
        return f"{answer['status']}: {answer['reason']}"

    def close(self, seconds: float) -> int:
        """Prints the summary; returns the exit status."""
        self._print_mispredictions()
        for variant, counts in sorted(self._counts.items(), reverse=True):
            share = 100 * counts["passed"] / counts.total()
            print(
                f"{variant}: {counts['passed']} passed, {counts['failed']} failed, "
                f"{counts['gap']} expected gaps ({share:.1f} % pass)"
            )
        self._print_ops()
        total: Counter[str] = sum(self._counts.values(), Counter())
        print(f"{len(self.records)} cases in {seconds:.0f} s")
        print(f"{total['passed']} passed, {total['failed']} failed, {total['gap']} skipped")
        return 1 if total["failed"] else 0

    def _print_ops(self) -> None:
        ops = {record["op"] for record in self.records}
        short = {record["op"] for record in self.records if record["status"] != "passed"}
        share = 100 * (len(ops) - len(short)) / max(len(ops), 1)
        print(f"OpInfos: {len(ops) - len(short)} of {len(ops)} pass whole ({share:.1f} %)")

    def _print_mispredictions(self) -> None:
        by_op: Counter[str] = Counter()
        for record in self.records:
            by_op[record["op"]] += record["mispredicted"]
        for op, count in sorted((+by_op).items()):
            print(f"mispredicted {op}: {count}")
        print(f"mispredicted in all: {by_op.total()}")


def key_of(case: dict[str, str]) -> gaps.Key:
    return case["op"], case["variant"], case["dtype"]


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--op", action="append", help="only this OpInfo (its full name); repeatable"
    )
    parser.add_argument("--variant", choices=["forward", "backward"], help="only this variant")
    parser.add_argument("--device", default="remote", help="cpu checks the suite itself")
    parser.add_argument("--jobs", type=int, default=2, help="worker processes")
    parser.add_argument("--samples", type=int, help="at most so many samples per case")
    parser.add_argument("--timeout", type=float, default=TIMEOUT_S, help="seconds per case")
    parser.add_argument("--all-dtypes", action="store_true", help="every dtype the CPU supports")
    parser.add_argument("--json", type=Path, help="write every case's outcome to this file")
    parser.add_argument("--write-gaps", action="store_true", help="rewrite known_gaps.toml")
    parser.add_argument("--verbose", action="store_true", help="print tracebacks")
    return parser.parse_args()


def select(plan: list[dict[str, str]], options: argparse.Namespace) -> list[dict[str, str]]:
    chosen = [case for case in plan if options.variant in (None, case["variant"])]
    if not options.op:
        return chosen
    unknown = set(options.op) - {case["op"] for case in plan}
    if unknown:
        sys.exit(f"no such OpInfo: {', '.join(sorted(unknown))}")
    return [case for case in chosen if case["op"] in options.op]


def write_gaps(records: list[dict[str, Any]], known: dict[gaps.Key, gaps.Gap]) -> None:
    """Cases that were not run keep their entries."""
    kept = dict(known)
    for record in records:
        key = key_of(record)
        if record["status"] == "passed":
            kept.pop(key, None)
        elif key not in kept:
            kept[key] = gaps.Gap(*key, reason=record["reason"])
    gaps.write(KNOWN_GAPS, list(kept.values()))
    print(f"wrote {len(kept)} gaps to {KNOWN_GAPS}")


def main() -> int:
    options = parse_options()
    started = time.monotonic()
    arguments = ["--device", options.device]
    if options.samples is not None:
        arguments += ["--samples", str(options.samples)]
    if options.all_dtypes:
        arguments += ["--all-dtypes"]
    pool = Pool(options.jobs, arguments, options.timeout)
    plan = pool.plan()
    cases = select(plan, options)
    known = gaps.read(KNOWN_GAPS)
    if options.device == "cpu":  # the gaps are the device's, but for OpInfos that are for CUDA only
        known = {key: gap for key, gap in known.items() if gap.dtype == "none"}
    strangers = set(known) - {key_of(case) for case in plan} if options.all_dtypes else set()
    for key in sorted(strangers):
        print(f"note: the gap {' '.join(key)} names a case that this torch does not have")

    report = Report(known, len(cases), options.verbose)
    pool.run(cases, report.add)
    status = report.close(time.monotonic() - started)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(report.records, indent=1))
    if options.write_gaps:
        write_gaps(report.records, known)
        return 0
    return status


if __name__ == "__main__":
    sys.exit(main())
