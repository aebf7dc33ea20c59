"""Connecting to a server from a command. These functions import torch, which takes seconds."""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import time
from types import ModuleType
from typing import TYPE_CHECKING

from .errors import REFUSED, UNREACHABLE, CommandError
from .output import Progress

if TYPE_CHECKING:
    import torch

    import torch_remote


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
    return "local" if config is None else str(config.default_url())


def configuration() -> ModuleType | None:
    """What reads the configuration file; None in a build without one."""
    try:
        return importlib.import_module("torch_remote._config")
    except ModuleNotFoundError:
        return None


def is_about_the_token(message: str, url: str) -> bool:
    return "token" in message.replace(url, "")


def connect(url: str, token_file: str | None, quiet: bool) -> torch_remote.Machine:
    """Connects and waits for the handshake."""
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
            raise CommandError(str(error), 2) from error
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
