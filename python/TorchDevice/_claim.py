"""The one accelerator that a program is told it has: CUDA, or MPS with `read_as="mps"`.

No real machine has both, and a program that finds both takes branches that nobody has tested.
"""

from __future__ import annotations

import functools
from typing import Any

NAMES = ("cuda", "mps")
_read_as: list[str | None] = [None]


def claim(name: str | None) -> None:
    _read_as[0] = name


def read_as() -> str | None:
    """The type that devices read as; None: their own."""
    return _read_as[0]


def claimed() -> str:
    return _read_as[0] or "cuda"


def is_claimed(name: str) -> bool:
    return claimed() == name


def if_claimed(name: str, answer: Any, otherwise: Any) -> Any:
    """A function that gives its answer while programs are told that they have this accelerator."""

    @functools.wraps(answer)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (answer if is_claimed(name) else otherwise)(*args, **kwargs)

    del call.__wrapped__
    return call
