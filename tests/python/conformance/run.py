"""The conformance suites: PyTorch's own samples on the device and on the CPU, compared bit for bit.

    python tests/python/conformance/run.py [--suite NAME] [--op NAME] [--jobs 2] [--json FILE]
        [--full] [--shard 1/4]

Exits 1 on a failure that known_gaps.toml does not list, on a misprediction, and on a listed gap
that passes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import gaps
from pool import Pool
from report import Report, key_of
from suites import SUITES

KNOWN_GAPS = Path(__file__).with_name("known_gaps.toml")
TIMEOUT_S = 60.0


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--suite", action="append", choices=SUITES, help="only this one; repeatable"
    )
    parser.add_argument("--op", action="append", help="only this entry (full name); repeatable")
    parser.add_argument("--variant", help="only this variant: forward, out, train, fused, …")
    parser.add_argument("--dtype", help="only this dtype, as float32")
    parser.add_argument("--device", default="remote", help="cpu checks the suites themselves")
    parser.add_argument("--jobs", type=int, default=2, help="worker processes")
    parser.add_argument("--samples", type=int, help="at most so many samples per case")
    parser.add_argument("--timeout", type=float, default=TIMEOUT_S, help="seconds per case")
    parser.add_argument(
        "--full",
        "--all-dtypes",
        action="store_true",
        help="every dtype, every sample, every variant",
    )
    parser.add_argument("--shard", default="1/1", help="K/N: the K-th of N equal parts")
    parser.add_argument("--json", type=Path, help="write every case's outcome to this file")
    parser.add_argument("--write-gaps", action="store_true", help="rewrite known_gaps.toml")
    parser.add_argument("--verbose", action="store_true", help="print tracebacks")
    return parser.parse_args()


def select(plan: list[dict[str, str]], options: argparse.Namespace) -> list[dict[str, str]]:
    unknown = set(options.op or []) - {case["op"] for case in plan}
    if unknown:
        sys.exit(f"no such entry: {', '.join(sorted(unknown))}")
    part, parts = map(int, options.shard.split("/"))
    chosen = [
        case
        for case in plan
        if (not options.op or case["op"] in options.op)
        and options.variant in (None, case["variant"])
        and options.dtype in (None, case["dtype"])
    ]
    return chosen[part - 1 :: parts]


def write_gaps(records: list[dict[str, Any]], known: dict[gaps.Key, gaps.Gap]) -> None:
    """Cases that were not run keep their entries."""
    kept = dict(known)
    for record in records:
        key = key_of(record)
        if record["status"] in ("failed", "skipped"):
            kept.setdefault(key, gaps.Gap(*key, reason=record["reason"]))
        else:
            kept.pop(key, None)
    gaps.write(KNOWN_GAPS, list(kept.values()))
    print(f"wrote {len(kept)} gaps to {KNOWN_GAPS}")


def main() -> int:
    options = parse_options()
    started = time.monotonic()
    arguments = ["--device", options.device]
    for suite in options.suite or SUITES:
        arguments += ["--suite", suite]
    if options.samples is not None:
        arguments += ["--samples", str(options.samples)]
    if options.full:
        arguments += ["--full"]
    pool = Pool(options.jobs, arguments, options.timeout)
    cases = select(pool.plan(), options)
    known = {} if options.device == "cpu" else gaps.read(KNOWN_GAPS)

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
