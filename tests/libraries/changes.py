"""The libraries without our changes, and accelerate without its memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import accelerate.state

import torch_remote
from torch_remote import _patches


@contextmanager
def without_changes() -> Iterator[None]:
    """A block in which the libraries are as their authors made them.

    What a library does in it says why we change the library.
    """
    _patches.undo_all()
    try:
        yield
    finally:
        torch_remote._change_torch()


def forget_accelerate() -> None:
    """accelerate keeps the device that it has chosen for the life of the process."""
    accelerate.state.AcceleratorState._reset_state(True)
