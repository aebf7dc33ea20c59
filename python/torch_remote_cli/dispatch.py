"""Finds the command of a command line and runs it. Only that command's file is imported."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from .errors import INTERRUPTED, OK, WRONG_USAGE, CommandError
from .output import printable_lines

if TYPE_CHECKING:
    import argparse

# Each is a file in `commands` with add_arguments(parser), run(options) and an EPILOG.
COMMANDS = {
    "serve": "run a server here",
    "run": "run a Python script on a server",
    "status": "show a server's sessions, memory and counters",
    "top": "show them live, on a terminal screen",
    "bench": "measure the connection to a server",
    "doctor": "find what is wrong with an installation or a connection",
    "page": "show a server's figures in a browser",
    "up": "launch a machine that goes on until `down`",
    "down": "end machines that were launched",
    "ps": "list machines that were launched, also by earlier runs",
    "logs": "print what a machine's server has printed",
    "completion": "print the completion script of a shell",
}

HELP = """\
usage: torch-remote COMMAND [options]

torch-remote runs PyTorch's operators in another process or on another machine.

commands:
{commands}

`torch-remote COMMAND --help` explains a command, with examples.

options:
  --version    print the version
  --help       print this

first steps:
  torch-remote doctor                                      is everything here in order?
  torch-remote serve --listen unix://$XDG_RUNTIME_DIR/torch-remote/gpu.sock
  torch-remote run --on unix://$XDG_RUNTIME_DIR/torch-remote/gpu.sock train.py   in another terminal
"""


def version() -> str:
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as version_of

    try:
        return version_of("torch-remote")
    except PackageNotFoundError:
        return "unknown (not installed)"


def help_text() -> str:
    rows = [f"  {name:<13}{summary}" for name, summary in COMMANDS.items()]
    return HELP.format(commands="\n".join(rows))


def load(command: str) -> ModuleType:
    return import_module(f"{__package__}.commands.{command}")


def parser_of(command: str) -> argparse.ArgumentParser:
    import argparse

    module = load(command)
    parser = argparse.ArgumentParser(
        prog=f"torch-remote {command}",
        description=module.__doc__,
        epilog=module.EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.add_arguments(parser)
    return parser


def run(command: str, arguments: list[str]) -> int:
    if command == "serve":  # its options are the server's own
        return int(load(command).serve(arguments))
    parser = parser_of(command)
    options = parser.parse_args(arguments)
    refuse_empty_values(parser, options)
    return int(load(command).run(options))


def refuse_empty_values(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """`--on "$UNSET"` is wrong usage, and not the same as no `--on`."""
    for action in parser._actions:
        given = getattr(options, action.dest, None)
        if action.nargs == "...":  # the script's own words
            continue
        if given == "" or (isinstance(given, list) and "" in given):
            parser.error(
                f"{action.metavar} of {[*action.option_strings, 'the command'][0]} is empty"
            )


def guarded(command: str, arguments: list[str]) -> int:
    """Runs a command. What the user can do something about is one line, not a traceback."""
    try:
        status = run(command, arguments)
        sys.stdout.flush()
        return status
    except CommandError as error:
        print(f"torch-remote {command}: {printable_lines(str(error))}", file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # `torch-remote status | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK


def print_in_any_encoding() -> None:
    """What a terminal cannot show, such as a path's letter in ASCII, is escaped and no error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with suppress(OSError, ValueError):  # a stream that is closed, or is another file now
                stream.reconfigure(errors="backslashreplace")


def main(arguments: list[str] | None = None) -> int:
    print_in_any_encoding()
    arguments = sys.argv[1:] if arguments is None else arguments
    command = arguments[0] if arguments else "--help"
    if command in COMMANDS:
        return guarded(command, arguments[1:])
    if command == "--version":
        print(f"torch-remote {version()}")
        return OK
    if command in ("--help", "-h", "help"):
        print(help_text(), end="")
        return OK
    print(
        f"torch-remote: there is no command {command!r}; try `torch-remote --help`.",
        file=sys.stderr,
    )
    return WRONG_USAGE
