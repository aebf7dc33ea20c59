"""Errors of a device, as a CUDA program expects them. Hooked calls of torch raise them already."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from .._errors import is_out_of_memory

__all__ = ["cuda_errors", "is_out_of_memory"]


@contextmanager
def cuda_errors() -> Iterator[None]:
    """For operators in a block: what means that memory is used up is torch.OutOfMemoryError."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        if isinstance(error, MemoryError) or is_out_of_memory(error):
            raise torch.OutOfMemoryError(str(error)) from error
        raise
