"""`torch.cuda.*` on Apple's MPS: one device, one stream, `torch.mps` for memory and events."""

from __future__ import annotations

import collections
from typing import Any

import torch

from . import _graphs, _host
from ._recorder import check_not_recording
from ._target import Properties, ranks_here
from ._target_cpu import CpuTarget


class MpsTarget(CpuTarget):
    kind = "mps"

    CUDAGraph = _graphs.MpsGraph

    def __init__(self) -> None:
        self._peak = 0

    @property
    def Event(self) -> Any:
        return torch.mps.Event

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return ranks_here()

    def get_device_properties(self, device: Any = None) -> Properties:
        memory = int(torch.mps.recommended_max_memory())
        cores = int(torch.backends.mps.get_core_count())
        return Properties("MPS (CUDA Compatible)", 7, 0, memory, cores, is_integrated=1)

    def synchronize(self, device: Any = None) -> None:
        check_not_recording("synchronize")
        torch.mps.synchronize()

    def empty_cache(self) -> None:
        torch.mps.empty_cache()

    def memory_stats(self, device: Any = None) -> dict[str, Any]:
        """MPS counts no peaks, so the peak is the highest figure that was read."""
        now = int(torch.mps.current_allocated_memory())
        self._peak = max(self._peak, now)
        reserved = int(torch.mps.driver_allocated_memory())
        return collections.OrderedDict(
            {
                "allocated_bytes.all.current": now,
                "allocated_bytes.all.peak": self._peak,
                "reserved_bytes.all.current": reserved,
                "reserved_bytes.all.peak": max(reserved, self._peak),
            }
        )

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        total = int(torch.mps.recommended_max_memory())
        return min(_host.free_bytes(), total - int(torch.mps.driver_allocated_memory())), total

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        self._peak = int(torch.mps.current_allocated_memory())

    def _limit_memory(self, fraction: float) -> None:
        torch.mps.set_per_process_memory_fraction(fraction)

    def manual_seed(self, seed: int) -> None:
        torch.mps.manual_seed(int(seed))

    def seed(self) -> None:
        torch.mps.seed()

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.mps.get_rng_state()

    def set_rng_state(self, new_state: torch.Tensor, device: Any = None) -> None:
        torch.mps.set_rng_state(new_state)

    def initial_seed(self) -> int:
        return int(torch.mps._get_default_mps_generator().initial_seed())
