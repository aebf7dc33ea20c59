"""Runs a Python script so that its tensors are on a server.

The script runs as `python script.py` does, in this environment. What it makes on `cuda` is on the
server, by TorchDevice; what it makes on the CPU, or without a device, stays here.
"""

from __future__ import annotations

import argparse
import os
import sys
from importlib.metadata import entry_points
from pathlib import Path

from .. import machine
from ..errors import CommandError
from ..run_setup import VARIABLE, WAITS_VARIABLE

EPILOG = """\
examples:
  torch-remote run train.py --epochs 3                       on the default machine
  torch-remote run --on tcp://127.0.0.1:4711 train.py        on that server
  torch-remote run --waits -m my_package.train               says at the end where it waited

Options of `run` come before the script; what follows the script's name is for the script.

exit status: the script's; before it begins: 1 there is no such script; 2 wrong usage; 3 nobody
listens at the address
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--on", metavar="URL", help="the server; default: TORCH_REMOTE, else local")
    parser.add_argument("--token-file", metavar="FILE", help="sets TORCH_REMOTE_TOKEN_FILE")
    parser.add_argument("--waits", action="store_true", help="print the lines that waited longest")
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress of transfers")
    parser.add_argument("-m", dest="is_module", action="store_true", help="SCRIPT is a module")
    parser.add_argument(
        "script", nargs=argparse.REMAINDER, metavar="SCRIPT ...", help="with its arguments"
    )


def run(options: argparse.Namespace) -> int:
    if not options.script:
        raise CommandError("which script? `torch-remote run --help` has examples", 2)
    script = options.script[0]
    if not options.is_module and not Path(script).exists():
        raise CommandError(f"there is no file {script}")
    if not is_registered():
        raise CommandError(
            "this installation of torch-remote is not registered with torch (no entry point "
            "`torch.backends`): install it by `make build` or `pip install .`"
        )
    url = machine.default_url() if options.on is None else options.on
    machine.check_url(url)
    machine.check_reachable(url)
    environment = environment_of(options)
    # The process stays the same, which is how run_setup knows that it is meant and no child is.
    words = [sys.executable, *(["-m"] if options.is_module else []), *options.script]
    sys.stdout.flush()
    os.execve(sys.executable, words, environment)


def is_registered() -> bool:
    """Whether `import torch` calls `_autoload`. If not, the script would run without a server."""
    return any(
        each.value.startswith("torch_remote_cli:") for each in entry_points(group="torch.backends")
    )


def environment_of(options: argparse.Namespace) -> dict[str, str]:
    environment = dict(os.environ)
    # PyTorch calls our entry point at the end of `import torch`.
    environment.update({VARIABLE: str(os.getpid()), "TORCH_DEVICE_BACKEND_AUTOLOAD": "1"})
    if options.on is not None:
        environment["TORCH_REMOTE"] = options.on
    if options.token_file:
        environment["TORCH_REMOTE_TOKEN_FILE"] = options.token_file
    if options.waits:
        environment[WAITS_VARIABLE] = "1"
    if options.quiet:
        environment["TORCH_REMOTE_PROGRESS"] = "0"
    return environment
