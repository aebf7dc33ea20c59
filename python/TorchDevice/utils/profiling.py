"""Time, memory and throughput of a block, on any device."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

__all__ = ["Measured", "measure"]


@dataclass
class Measured:
    """Filled in when the block ends."""

    items: int = 0
    seconds: float = 0.0
    peak_memory: int = 0

    @property
    def items_per_second(self) -> float:
        return self.items / self.seconds if self.seconds > 0 else 0.0


@contextmanager
def measure(items: int = 0) -> Iterator[Measured]:
    """`with measure(items=64) as m:`; then `m.seconds`, `m.peak_memory`, `m.items_per_second`."""
    measured = Measured(items)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    yield measured
    torch.cuda.synchronize()
    measured.seconds = time.perf_counter() - start
    measured.peak_memory = torch.cuda.max_memory_allocated()
