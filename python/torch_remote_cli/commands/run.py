"""Runs a Python script so that its tensors are on a server.

The script runs as `python script.py` does, in this environment. What it makes on `cuda` is on the
server, by TorchDevice; what it makes on the CPU, or without a device, stays here.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import sys
from importlib.metadata import entry_points
from pathlib import Path

from .. import machine, reach
from ..errors import WRONG_USAGE, CommandError
from ..run_setup import URL_VARIABLE, VARIABLE, WAITS_VARIABLE

EPILOG = """\
examples:
  torch-remote run train.py --epochs 3                       on the default machine
  torch-remote run --on tcp://127.0.0.1:4711 train.py        on that server
  torch-remote run --waits -m my_package.train               says at the end where it waited
  torch-remote run torchrun --nproc-per-node 2 train.py      each rank with a server of its own
  torch-remote run -c 'import torch; print(torch.ones(2, device="cuda"))'
  torch-remote run --as mps train.py                         a script written for Apple's MPS

SCRIPT may also be a Python program of this environment, such as torchrun or accelerate.
Options of `run` come before the script; what follows the script's name is for the script.

exit status: the script's; before it begins: 1 there is no such script or token file; 2 wrong
usage; 3 nobody answers at the address; 4 the token is refused
"""

READ_AS = ("cuda", "mps")
READ_AS_VARIABLE = "TORCHDEVICE_READ_AS"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--on", metavar="URL", help=f"the server; default: {machine.DEFAULT}")
    parser.add_argument("--token-file", metavar="FILE", help="sets TORCH_REMOTE_TOKEN_FILE")
    parser.add_argument(
        "--as",
        dest="read_as",
        choices=READ_AS,
        help="what the script reads as the type of its devices; sets TORCHDEVICE_READ_AS",
    )
    parser.add_argument("--waits", action="store_true", help="print the lines that waited longest")
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress of transfers")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("-m", dest="is_module", action="store_true", help="SCRIPT is a module")
    what.add_argument(
        "-c", dest="code", nargs=argparse.REMAINDER, metavar="CODE", help="run this code"
    )
    parser.add_argument(
        "script",
        nargs=argparse.REMAINDER,
        metavar="SCRIPT ...",
        help="with its arguments; - reads it from standard input",
    )


def run(options: argparse.Namespace) -> int:
    words = python_words(options)
    if not is_registered():
        raise CommandError(
            "this installation of torch-remote is not registered with torch (no entry point "
            "`torch.backends`): install it by `make build` or `pip install .`"
        )
    check_read_as(options.read_as or os.environ.get(READ_AS_VARIABLE, ""))
    url = machine.default_url() if options.on is None else options.on
    environment = environment_of(options)
    reach.check_machine(url, options.token_file, options.quiet)
    # The process stays the same, which is how run_setup tells it from its children.
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *words], environment)


def python_words(options: argparse.Namespace) -> list[str]:
    """What to run, as Python's own command line says it."""
    words = list(options.script)
    if options.code is not None:
        words = [*options.code, *words]
    elif words[:1] == ["--"]:  # Python 3.13 leaves it out
        words = words[1:]
    if not words or (not words[0] and options.code is None):
        raise CommandError("which script? `torch-remote run --help` has examples", WRONG_USAGE)
    if options.code is not None:
        return ["-c", *words]
    if options.is_module:
        return ["-m", *words]
    if is_interpreter(words[0]) and not Path(words[0], "__main__.py").exists():
        rest = shlex.join(words[1:]) or "SCRIPT"
        raise CommandError(
            f"leave `{words[0]}` out: `torch-remote run {rest}`; it runs {sys.executable}",
            WRONG_USAGE,
        )
    if words[0] != "-" and not Path(words[0]).exists():
        words[0] = program(words[0])
    return words


def program(name: str) -> str:
    """The path of an installed program that is a Python script, such as torchrun."""
    beside = str(Path(sys.executable).parent)
    found = shutil.which(name, path=beside) or shutil.which(name)
    if found is None:
        raise CommandError(f"there is no file {name}")
    if not is_python_script(Path(found)):
        raise CommandError(f"{found} is no Python script: `run` can only run those")
    return found


def is_interpreter(path: str) -> bool:
    return re.fullmatch(r"(python|pypy)[\d.]*t?", Path(path).name) is not None


def is_python_script(path: Path) -> bool:
    """Whether its first line names Python; or, as pip writes it for a long path, the second:

    #!/bin/sh
    '''exec' "/a long path/python3" "$0" "$@"
    """
    with path.open("rb") as file:
        first, second = (os.fsdecode(file.readline(4096)) for _ in range(2))
    if not first.startswith("#!"):
        return False
    if first.split() == ["#!/bin/sh"] and second.startswith("'''exec' "):
        return is_interpreter(shlex.split(second)[1])
    words = first.removeprefix("#!").split()
    if words and Path(words[0]).name == "env":
        words = [each for each in words[1:] if not each.startswith("-") and "=" not in each]
    return bool(words) and is_interpreter(words[0])


def is_registered() -> bool:
    """Whether `import torch` calls `_autoload`. If not, the script would run without a server."""
    return any(
        each.value.startswith("torch_remote_cli:") for each in entry_points(group="torch.backends")
    )


def check_read_as(name: str) -> None:
    if name.strip() and name.strip().lower() not in READ_AS:
        raise CommandError(f"{READ_AS_VARIABLE} is {name}; it may be cuda or mps", 2)


def environment_of(options: argparse.Namespace) -> dict[str, str]:
    environment = dict(os.environ)
    # PyTorch calls our entry point at the end of `import torch`.
    environment.update({VARIABLE: str(os.getpid()), "TORCH_DEVICE_BACKEND_AUTOLOAD": "1"})
    if options.on is not None:
        environment["TORCH_REMOTE"] = options.on
    environment[URL_VARIABLE] = environment.get("TORCH_REMOTE", "")
    if options.token_file:
        environment["TORCH_REMOTE_TOKEN_FILE"] = options.token_file
    if options.read_as:
        environment[READ_AS_VARIABLE] = options.read_as
    if options.waits:
        environment[WAITS_VARIABLE] = "1"
    if options.quiet:
        environment["TORCH_REMOTE_PROGRESS"] = "0"
    return environment
