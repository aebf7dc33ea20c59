"""For the commands `up`, `down`, `ps` and `logs`. Importing torch_remote takes seconds."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .errors import FAILED, WRONG_USAGE, CommandError


def load() -> Any:
    """`torch_remote._kept`, with its machines."""
    try:
        return importlib.import_module("torch_remote._kept")
    except ImportError as error:
        raise CommandError(f"{error}; `torch-remote doctor` says more") from error


@contextmanager
def errors_told() -> Iterator[None]:
    """What a provider says is one line."""
    try:
        yield
    except ValueError as error:  # a wrong URL or name
        raise CommandError(str(error), WRONG_USAGE) from error
    except (RuntimeError, TimeoutError) as error:
        raise CommandError(str(error), FAILED) from error
