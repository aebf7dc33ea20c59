"""The `torch-remote` command.

It is not in the package, because importing that imports torch, which takes seconds.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

HELP = """\
usage: torch-remote COMMAND [options]

commands:
  serve        run a server here: `torch-remote serve --help` lists its options

options:
  --version    print the version
  --help       print this
"""


def _server() -> Path | None:
    """The path of the server. Finds the package without importing it."""
    spec = importlib.util.find_spec("torch_remote")
    if spec is None:
        return None
    # An editable install has two places: the sources and the built files.
    candidates = [
        Path(p) / "bin/torch-remote-server" for p in spec.submodule_search_locations or ()
    ]
    return next((path for path in candidates if path.exists()), None)


def _serve(arguments: list[str]) -> int:
    server = _server()
    if server is None:
        print(
            "torch-remote: torch_remote/bin/torch-remote-server is not installed beside this "
            "command; build it with `make build` or `pip install .`.",
            file=sys.stderr,
        )
        return 1
    os.execv(server, [str(server), *arguments])


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torch-remote")
    except PackageNotFoundError:
        return "unknown (not installed)"


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    command = arguments[0] if arguments else "--help"
    if command == "serve":
        return _serve(arguments[1:])
    if command == "--version":
        print(f"torch-remote {_version()}")
        return 0
    if command in ("--help", "-h"):
        print(HELP, end="")
        return 0
    print(
        f"torch-remote: there is no command {command!r}; try `torch-remote --help`.",
        file=sys.stderr,
    )
    return 2


def _autoload() -> None:
    """`import torch` calls this (entry point `torch.backends`). Does nothing unless asked to."""
    if os.environ.get("TORCH_REMOTE_AUTOLOAD") == "1":
        import torch_remote  # noqa: F401


if __name__ == "__main__":
    sys.exit(main())
