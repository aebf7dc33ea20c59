"""Ends machines that `torch-remote up` or a program has launched, and forgets them."""

from __future__ import annotations

import argparse
import sys

from .. import fleet
from ..errors import FAILED, OK, WRONG_USAGE, CommandError
from ..output import printable_lines

EPILOG = """\
examples:
  torch-remote down box
  torch-remote down --all                             all that `torch-remote ps` lists
  torch-remote down modal://sb-1234567890123456789012      one that `ps --all` lists

exit status: 0; 1 a machine may go on; 2 wrong usage
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="as `torch-remote ps` says")
    parser.add_argument("--all", action="store_true", help="all that `torch-remote ps` lists")
    parser.add_argument(
        "--forget", action="store_true", help="forget it even if it cannot be ended"
    )


def run(options: argparse.Namespace) -> int:
    if bool(options.names) == options.all:
        raise CommandError("name the machines, or write --all", WRONG_USAGE)
    machines = fleet.load()
    status = OK
    if options.all:
        chosen = {each.name: each for each in machines.listed(False, ask=False)}
    else:
        with fleet.errors_told():
            chosen = {name: machines.find(name) for name in options.names}
    for name, one in chosen.items():
        if one is None:
            _tell(f"there is no machine {name}; see `torch-remote ps`")
            status = FAILED
            continue
        try:
            machines.down(one)
            print(f"{name} is ended")
        except Exception as error:
            _tell(f"{name}: {error}")
            status = FAILED
            if options.forget and one.running is not None:
                machines._running.forget(name)
    return status


def _tell(text: str) -> None:
    print(f"torch-remote down: {printable_lines(text)}", file=sys.stderr)
