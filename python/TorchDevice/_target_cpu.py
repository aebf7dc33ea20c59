"""`torch.cuda.*` on the CPU: no device is available, and the figures are the host's own."""

from __future__ import annotations

import collections
from typing import Any

import torch

from . import _C, _graphs, _host, _in_order
from ._recorder import check_not_recording
from ._target import Properties, Target, index_of


class _Block:
    """`torch.cuda.device(i)` and `device_of(x)` where there is nothing to choose."""

    def __init__(self, device: Any = None) -> None:
        self.idx = index_of(device) if not isinstance(device, torch.Tensor) else 0
        self.prev_idx = 0

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exception: object) -> None:
        pass


_fractions: dict[str, float] = {}  # of memory, by kind of device: what the program has set


def forget_limits() -> None:
    """The CPU has no limit any more."""
    _C.set_host_limit(0)
    _fractions.pop("cpu", None)


class CpuTarget(Target):
    kind = "cpu"

    Stream = _in_order.Stream
    Event: Any = _in_order.Event
    StreamContext = _in_order.StreamContext
    stream = _in_order.StreamContext
    default_stream = staticmethod(_in_order.default_stream)
    current_stream = staticmethod(_in_order.current_stream)
    set_stream = staticmethod(_in_order.set_stream)
    device = _Block
    device_of = _Block
    CUDAGraph = _graphs.CpuGraph
    is_current_stream_capturing = staticmethod(_graphs.is_recording)

    default_generators = (torch.default_generator,)

    def is_available(self) -> bool:
        return False

    def device_count(self) -> int:
        return 0

    def get_device_properties(self, device: Any = None) -> Properties:
        return Properties(_host.cpu_name(), 0, 0, _host.total_bytes(), _host.core_count())

    def memory_stats(self, device: Any = None) -> dict[str, Any]:
        """The memory of the process: the CPU has no allocator of its own that could say more."""
        now, peak = _host.resident_bytes(), _host.peak_resident_bytes()
        stats = {
            f"{name}_bytes.all.{which}": value
            for name in ("active", "allocated", "reserved")
            for which, value in (("current", now), ("peak", max(now, peak)))
        }
        return collections.OrderedDict(sorted(stats.items()))

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        return _host.free_bytes(), _host.total_bytes()

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        _host.reset_peak()

    def set_per_process_memory_fraction(self, fraction: float, device: Any = None) -> None:
        """Of the host's memory. Counts what the process has, and each tensor made from now on."""
        if not isinstance(fraction, float):
            raise TypeError("Invalid type for fraction argument, must be `float`")
        if not 0 <= fraction <= 1:
            raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
        self._limit_memory(fraction)
        _fractions[self.kind] = fraction

    def _limit_memory(self, fraction: float) -> None:
        allowed = max(1, int(_host.total_bytes() * fraction))
        _C.set_host_limit(0 if fraction == 1 else allowed)

    def get_per_process_memory_fraction(self, device: Any = None) -> float:
        return _fractions.get(self.kind, 1.0)

    def synchronize(self, device: Any = None) -> None:
        check_not_recording("synchronize")

    def manual_seed(self, seed: int) -> None:
        torch.default_generator.manual_seed(int(seed))

    def seed(self) -> None:
        torch.default_generator.seed()

    def initial_seed(self) -> int:
        return int(torch.default_generator.initial_seed())

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.default_generator.get_state()

    def set_rng_state(self, new_state: torch.Tensor, device: Any = None) -> None:
        torch.default_generator.set_state(new_state)

    def memory_snapshot(self, mempool_id: Any = None) -> list[dict[str, Any]]:
        """The CPU's memory has no segments that could be listed."""
        return []
