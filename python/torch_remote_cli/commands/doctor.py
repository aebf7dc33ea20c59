"""Finds what is wrong: this installation, its settings, and the connection to a server.

Each finding comes with what to do about it. The checks change nothing. One of them connects to the
server as a client does; for `local` it starts the embedded server.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from dataclasses import asdict

from .. import checks_local, checks_machine, figures, machine
from ..errors import FAILED, OK
from ..findings import Finding, describe
from ..output import Waiting, counted, print_json

EPILOG = """\
states: ok; note (nothing to do for most people); warning (works, but look at it); problem.

examples:
  torch-remote doctor                                    this machine, and the default server
  torch-remote doctor --on tcp://127.0.0.1:4711 --token-file ~/.torch-remote-token --gpu
  torch-remote doctor --json | jq '.findings[] | select(.state != "ok")'

exit status: 0 no problem; 1 at least one problem; 2 wrong usage
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    machine.add_arguments(parser)
    parser.add_argument("--gpu", action="store_true", help="the server must have a CUDA device")
    parser.add_argument(
        "--metrics", metavar="URL", help="the server's metrics socket, unix:///path"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="print only warnings and problems"
    )


def run(options: argparse.Namespace) -> int:
    if options.metrics is not None:
        figures.find_socket(options.metrics)  # wrong usage, before anything is looked at
    found = []
    for finding in examine(options):
        found.append(finding)
        if not options.json and not (options.quiet and finding.state in ("ok", "note")):
            print(describe(finding), flush=True)
    problems = sum(finding.state == "problem" for finding in found)
    warnings = sum(finding.state == "warning" for finding in found)
    if options.json:
        print_json(
            {
                "problems": problems,
                "warnings": warnings,
                "findings": [asdict(finding) for finding in found],
            }
        )
    elif not options.quiet:
        print(f"\n{counted(problems, 'problem')}, {counted(warnings, 'warning')}")
    return FAILED if problems else OK


def examine(options: argparse.Namespace) -> Iterator[Finding]:
    named = machine.named_url(options)
    url = named or os.environ.get("TORCH_REMOTE") or "local"
    yield from checks_local.check_python()
    yield from checks_local.check_server_program(url)
    yield from checks_local.check_toolchain()
    yield from checks_local.check_environment()
    yield from checks_local.check_config()
    yield from checks_local.check_token_file(options.token_file)
    with Waiting("loading torch and connecting", options.quiet):
        steps, failure = checks_machine.run_probe(named, options.token_file)
    yield from checks_machine.findings_of(steps, failure, options.gpu)
    yield from checks_local.check_metrics(options.metrics)
