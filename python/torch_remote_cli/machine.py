"""Connecting to a server from a command: connect() imports torch, which takes seconds."""

from __future__ import annotations

import argparse
import importlib.util
import os
import socket
import statistics
import sys
import time
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from .errors import REFUSED, UNREACHABLE, WRONG_USAGE, CommandError
from .output import Progress

if TYPE_CHECKING:
    import torch

    import torch_remote

DIAL_S = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="a copy of the server's token file; default: TORCH_REMOTE_TOKEN_FILE",
    )


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


@cache
def configuration() -> ModuleType | None:
    """torch_remote._config, without its package, which imports torch; None if it is not there."""
    package = importlib.util.find_spec("torch_remote")
    folders = package.submodule_search_locations or () if package else ()
    path = next((p for p in (Path(f) / "_config.py" for f in folders) if p.exists()), None)
    if path is None:
        return None
    spec = importlib.util.spec_from_file_location("torch_remote_cli._configuration", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def check_url(url: str) -> None:
    """Refuses what is no URL and no name of the configuration file, before torch is imported."""
    config = configuration()
    try:
        if config is not None:
            config.target_of(url)
    except ValueError as error:
        raise CommandError(str(error), WRONG_USAGE) from None


def check_reachable(url: str) -> None:
    """Whether something accepts connections at an address that is dialled. Sends nothing."""
    config = configuration()
    address = str(config.target_of(url).url) if config is not None else url
    parts = urlsplit(address)
    try:
        if parts.scheme == "unix":
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(DIAL_S)
                probe.connect(parts.path)
        elif parts.scheme in ("tcp", "tls") and parts.hostname and parts.port:
            socket.create_connection((parts.hostname, parts.port), DIAL_S).close()
    except ValueError:
        return  # the script's process says what is wrong with the URL
    except OSError as error:
        raise CommandError(
            f"cannot use {address}: {error.strerror or error}. What to do: start a server there "
            "with `torch-remote serve --listen URL`, or check the address and the forwarded port",
            UNREACHABLE,
        ) from None


def is_about_the_token(message: str, url: str) -> bool:
    return "token" in message.replace(url, "")


def connect(url: str, token_file: str | None, quiet: bool) -> torch_remote.Machine:
    """Connects and waits for the handshake."""
    check_url(url)
    with Progress(f"connecting to {url}", quiet):
        try:
            import torch_remote
        except ImportError as error:
            raise CommandError(f"{error}; `torch-remote doctor` says more") from error
        try:
            machine = torch_remote.connect(url, token_file=token_file)
            machine.devices  # noqa: B018  waits for the handshake
        except torch_remote.ConnectionError as error:
            status = REFUSED if is_about_the_token(str(error), url) else UNREACHABLE
            raise CommandError(str(error), status) from error
        except ValueError as error:  # a URL that is none
            raise CommandError(str(error), WRONG_USAGE) from error
        except RuntimeError as error:
            raise CommandError(str(error), UNREACHABLE) from error
    return machine


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
