"""Lists the machines that were launched and not ended, also by programs that have ended."""

from __future__ import annotations

import argparse
import time
from typing import Any

from .. import fleet
from ..errors import OK
from ..output import Waiting, duration_text, print_json, table

EPILOG = """\
examples:
  torch-remote ps
  torch-remote ps --all --json        also what the providers themselves list

exit status: 0; 2 wrong usage
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--all", action="store_true", help="also those that other computers have launched"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")


def run(options: argparse.Namespace) -> int:
    with Waiting("asking the providers", options.quiet):
        found = [_told(each) for each in fleet.load().listed(options.all)]
    if options.json:
        print_json(found)
        return OK
    if not found:
        print("no machines are running")
        return OK
    rows = [
        [
            each["name"],
            each["provider"],
            duration_text(each["age_seconds"]) if each["age_seconds"] else "-",
            f"{each['usd_per_hour']:.2f}" if each["usd_per_hour"] else "-",
            each["state"],
        ]
        for each in found
    ]
    print(table(("name", "provider", "age", "USD/h", "state"), rows, left=5))
    return OK


def _told(one: Any) -> dict[str, Any]:
    running = one.running
    return {
        "name": one.name,
        "provider": one.provider,
        "url": running.url if running else one.endpoint.url,
        "state": one.state,
        "kept": running.kept if running else None,
        "age_seconds": max(0.0, time.time() - running.started) if running else None,
        "usd_per_hour": one.endpoint.usd_per_hour,
        "ends": one.endpoint.ends,
    }
