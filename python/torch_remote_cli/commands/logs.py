"""Prints what the server of a launched machine has printed."""

from __future__ import annotations

import argparse

from .. import fleet
from ..errors import OK, CommandError
from ..output import printable_lines

EPILOG = """\
examples:
  torch-remote logs box

exit status: 0; 1 there is no such machine, or its provider does not answer; 2 wrong usage
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="as `torch-remote ps` says")


def run(options: argparse.Namespace) -> int:
    machines = fleet.load()
    with fleet.errors_told():
        one = machines.find(options.name)
        if one is None:
            raise CommandError(f"there is no machine {options.name}; see `torch-remote ps`")
        text = machines.logs(one)
    print(printable_lines(text), end="" if text.endswith("\n") else "\n")
    return OK
