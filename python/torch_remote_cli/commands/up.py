"""Launches a machine that goes on when this command ends, until `torch-remote down` ends it.

Programs connect to it by its name. Its server ends itself, and with it the machine, after `idle`
without a call and after `lifetime`; both are options of the URL.
"""

from __future__ import annotations

import argparse
import shlex

from .. import fleet
from ..errors import OK
from ..output import print_json

EPILOG = """\
examples:
  torch-remote up modal://H100 --name box
  torch-remote run --on box train.py
  torch-remote up 'ray://head:6379?num_gpus=4&idle=1h'
  torch-remote up 'k8s://?image=registry/torch-remote' && torch-remote ps

exit status: 0; 1 it cannot be launched; 2 wrong usage; 130 Ctrl-C, which leaves nothing running
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="a provider's URL, or a configured name")
    parser.add_argument("--name", metavar="NAME", help="what to call it; default: a new name")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    with fleet.errors_told():
        made = fleet.load().up(options.url, options.name)
    if options.json:
        print_json({"name": made.name, "url": made.url, "ends": made.endpoint.ends})
        return OK
    print(f"{made.name} runs. {made.endpoint.ends}.")
    print(f"`torch-remote run --on {shlex.quote(made.name)} train.py` uses it.")
    return OK
