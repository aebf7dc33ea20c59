"""Judges answers against the known gaps, and prints the table."""

from __future__ import annotations

from collections import Counter
from typing import Any

import gaps
from pool import Answer

COLUMNS = {
    "passed": "passed",
    "failed": "failed",
    "gap": "expected gaps",
    "refused": "refused (not dense)",
    "absent": "not on this device",
}


class Report:
    def __init__(self, known: dict[gaps.Key, gaps.Gap], total: int, verbose: bool) -> None:
        self._known = known
        self._total = total
        self._verbose = verbose
        self._counts: dict[tuple[str, str], Counter[str]] = {}  # by suite and variant
        self.records: list[dict[str, Any]] = []

    def add(self, case: dict[str, str], answer: Answer) -> None:
        verdict = self._judge(key_of(case), answer)
        self._counts.setdefault((case["suite"], case["variant"]), Counter())[verdict] += 1
        self.records.append(case | answer | {"verdict": verdict})
        if verdict == "failed":
            print(f"FAILED {' '.join(key_of(case))}: {self._explain(answer)}", flush=True)
            if self._verbose and answer["details"]:
                print(answer["details"], flush=True)
        if len(self.records) % 500 == 0:
            print(f"... {len(self.records)} of {self._total}", flush=True)

    def close(self, seconds: float) -> int:
        """Prints the table; returns the exit status."""
        self._print_table()
        total: Counter[str] = sum(self._counts.values(), Counter())
        mispredicted = sum(record["mispredicted"] for record in self.records)
        print(f"{len(self.records)} cases in {seconds:.0f} s, mispredicted: {mispredicted}")
        counts = [f"{total[key]} {name}" for key, name in COLUMNS.items()]
        print(", ".join(counts))
        return 1 if total["failed"] else 0

    def _judge(self, key: gaps.Key, answer: Answer) -> str:
        passes = answer["status"] == "passed" and not answer["mispredicted"]
        if key in self._known:
            return "failed" if passes else "gap"
        if answer["status"] in ("refused", "absent"):
            return str(answer["status"])
        return "passed" if passes else "failed"

    def _explain(self, answer: Answer) -> str:
        if answer["mispredicted"]:
            return f"mispredicted {answer['mispredicted']} times; {answer['reason']}"
        if answer["status"] == "passed":
            return "passes, but is listed in known_gaps.toml: remove it there"
        return f"{answer['status']}: {answer['reason']}"

    def _print_table(self) -> None:
        rows = [["", *COLUMNS.values()]]
        for (suite, variant), counts in sorted(self._counts.items()):
            rows.append([f"{suite} {variant}", *(str(counts[key]) for key in COLUMNS)])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
            print("  ".join([row[0].ljust(widths[0]), *cells]))


def key_of(case: dict[str, str]) -> gaps.Key:
    return case["op"], case["variant"], case["dtype"]
