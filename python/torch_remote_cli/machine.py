"""Connecting to a server from a command: connect() imports torch, which takes seconds."""

from __future__ import annotations

import argparse
import importlib.util
import os
import stat
import statistics
import sys
import time
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from .errors import FAILED, WRONG_USAGE, CommandError
from .output import Waiting
from .troubles import no_token, trouble_of

if TYPE_CHECKING:
    import torch

    import torch_remote


DEFAULT = "TORCH_REMOTE, else local"


def add_arguments(parser: argparse.ArgumentParser, default: str = DEFAULT) -> None:
    """The server and its token. `run` has them too, but its first word is the script."""
    parser.add_argument("url", nargs="?", metavar="URL", help="the same as --on URL")
    parser.add_argument("--on", metavar="URL", help=f"the server; default: {default}")
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="a copy of the server's token file; default: TORCH_REMOTE_TOKEN_FILE",
    )


def named_url(options: argparse.Namespace) -> str | None:
    """The server that the command line names; None if it names none."""
    if options.url is not None and options.on is not None:
        raise CommandError("name the server once: URL or --on URL", WRONG_USAGE)
    named: str | None = options.on if options.url is None else options.url
    return named


def default_url() -> str:
    """The machine that a program without settings uses."""
    url = os.environ.get("TORCH_REMOTE")
    if url:
        return url
    config = configuration()
    try:
        return "local" if config is None else str(config.default_url())
    except ValueError as error:
        raise CommandError(str(error), WRONG_USAGE) from None


def configuration() -> ModuleType | None:
    """torch_remote._config; None if it is not there."""
    return load_alone("_config.py")


@cache
def load_alone(name: str) -> ModuleType | None:
    """A file of torch_remote without the package, which imports torch; None if it is not there."""
    package = importlib.util.find_spec("torch_remote")
    folders = package.submodule_search_locations or () if package else ()
    path = next((p for p in (Path(f) / name for f in folders) if p.exists()), None)
    if path is None:
        return None
    spec = importlib.util.spec_from_file_location(f"torch_remote_cli._{path.stem}_alone", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def check_url(url: str) -> None:
    """Refuses what is no URL and no name of a machine, before torch is imported."""
    config, running = configuration(), load_alone("_running.py")
    try:
        if config is None or running is None or is_launched(url):
            return
        config.target_of(url)
    except ValueError as error:
        raise CommandError(str(error), WRONG_USAGE) from None


def is_launched(url: str) -> bool:
    """Whether it is the name of a machine that `torch-remote ps` lists."""
    config, running = configuration(), load_alone("_running.py")
    if config is None or running is None or config.is_known(url):
        return False
    return url in running.names()


def connect(url: str, token_file: str | None, quiet: bool) -> torch_remote.Machine:
    """Connects and waits for the handshake."""
    check_url(url)
    check_token(url, token_file)
    with Waiting(f"connecting to {url}", quiet):
        try:
            import torch_remote
        except ImportError as error:
            raise CommandError(f"{error}; `torch-remote doctor` says more") from error
        try:
            machine = torch_remote.connect(url, token_file=token_file)
            machine.devices  # noqa: B018  waits for the handshake
        except (ValueError, RuntimeError) as error:
            trouble = trouble_of(error)
            raise CommandError(trouble.sentence(), trouble.status) from error
    return machine


def check_token(url: str, token_file: str | None, is_read_again: bool = False) -> None:
    """Refuses a token file that cannot be used, which no server has to say.

    Does not read a pipe, which gives its token once. `is_read_again`: another process reads it too.
    """
    option = "--token-file" if token_file else "TORCH_REMOTE_TOKEN_FILE"
    name = token_file or (os.environ.get(option) if uses_token_variable(url) else None)
    if not name:
        return
    path = Path(name).expanduser()
    try:
        is_once = not stat.S_ISREG(path.stat().st_mode) and not path.is_dir()
        if is_once and is_read_again:
            raise CommandError(
                f"{option}: {path} is not a regular file, and the script's process must read the "
                "token again: name a file",
                WRONG_USAGE,
            )
        is_empty = not is_once and not path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text file"
        raise CommandError(f"{option}: cannot read {path}: {why}", FAILED) from None
    if is_empty:
        trouble = no_token(f"{option}: there is no token in {path}")
        raise CommandError(trouble.sentence(), trouble.status)


def uses_token_variable(url: str) -> bool:
    """Whether the server takes the token of TORCH_REMOTE_TOKEN_FILE. Launched ones have others."""
    config = configuration()
    if config is None or is_launched(url):
        return False
    scheme = str(config.target_of(url).url).partition("://")[0]
    return scheme != "local" and scheme in config.WITHOUT_OPTIONS


def round_trips(device: torch.device, seconds: float, most: int) -> list[float]:
    """How long reads of one number take, each waited for."""
    import torch

    number = torch.zeros((), device=device)
    for _ in range(3):
        number.item()
    times: list[float] = []
    end = time.monotonic() + seconds
    while len(times) < most and (len(times) < 3 or time.monotonic() < end):
        begin = time.perf_counter()
        number.item()
        times.append(time.perf_counter() - begin)
    return times


def median(times: list[float]) -> float:
    return statistics.median(times)
