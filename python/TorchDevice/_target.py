"""What `torch.cuda.*` answers for a device that is not CUDA. The attributes are `_table.ANSWERED`.

This class holds what is the same everywhere; `_target_cpu.py`, `_target_mps.py` and
`_target_remote.py` know the devices.
"""

from __future__ import annotations

import collections
import functools
import os
import types
from dataclasses import dataclass
from typing import Any

import torch

from . import _graphs
from ._log import warn_once


@dataclass(frozen=True)
class Properties:
    """The fields of CUDA's device properties that mean something elsewhere."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int
    is_integrated: int = 0
    is_multi_gpu_board: int = 0


def index_of(device: Any) -> int | None:
    """The index that a device argument of torch.cuda means; None: the current device."""
    if device is None or isinstance(device, int):
        return device
    if isinstance(device, torch.device):
        index: int | None = device.index
        return index
    _, colon, digits = str(device).partition(":")
    return int(digits) if colon else None


def ranks_here() -> int:
    """How many ranks torchrun has started on this computer; 1 without torchrun.

    Each rank has a device of its own, which `cuda:<its local rank>` is redirected to. So a rank is
    told of as many devices as there are ranks: `LOCAL_RANK % device_count()` and the like work.
    """
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(ranks) if ranks.isdecimal() else 1


def refusal(name: str, advice: str) -> NotImplementedError:
    return NotImplementedError(f"torch.cuda.{name} has no equivalent on this device: {advice}")


def _refused(name: str, advice: str) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise refusal(name, advice)

    return method


_TELEMETRY = "no sensor of this device can be read; ask the system's own tools"


class _Runtime(types.SimpleNamespace):
    """`torch.cuda.cudart()`. A function that is not here is refused by name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("cuda"):
            raise refusal(f"cudart().{name}", "there is no CUDA runtime here; use torch.cuda")
        raise AttributeError(name)


class Target:
    """The defaults: a device that is there, with nothing that only CUDA has."""

    kind = "cpu"  # the device type, as torch names it

    graph_pool_handle = staticmethod(_graphs.graph_pool_handle)

    @functools.cached_property
    def graph(self) -> Any:
        return _graphs.graph_class()

    def make_graphed_callables(self, *args: Any, **kwargs: Any) -> Any:
        return _graphs.make_graphed_callables(self.kind, *args, **kwargs)

    utilization = _refused("utilization", _TELEMETRY)
    temperature = _refused("temperature", _TELEMETRY)
    power_draw = _refused("power_draw", _TELEMETRY)
    memory_usage = _refused("memory_usage", _TELEMETRY)
    clock_rate = _refused("clock_rate", _TELEMETRY)
    list_gpu_processes = _refused("list_gpu_processes", _TELEMETRY)
    memory_snapshot = _refused("memory_snapshot", "use torch.cuda.memory_stats()")

    def snapshot_function(self, name: str) -> Any:
        """A function of `_table.SNAPSHOTS`."""

        def refused(*args: Any, **kwargs: Any) -> Any:
            raise refusal(f"memory.{name}", "use torch.cuda.memory_stats()")

        return refused

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return ranks_here()

    def current_device(self) -> int:
        return 0

    def existing_index(self, device: Any) -> int | None:
        """The index that a device argument means; None: the current device."""
        return 0

    def set_device(self, device: Any) -> None:
        """There is one device: every index means it, as in `device="cuda:1"`."""

    _is_initialized = False

    def init(self) -> None:
        self._is_initialized = True

    def is_initialized(self) -> bool:
        return self._is_initialized or self.is_available()

    def can_device_access_peer(self, device: Any, peer_device: Any) -> bool:
        return False

    def ipc_collect(self) -> None:
        pass

    def get_device_name(self, device: Any = None) -> str:
        return str(self.get_device_properties(device).name)

    def get_device_capability(self, device: Any = None) -> tuple[int, int]:
        properties = self.get_device_properties(device)
        return properties.major, properties.minor

    def get_device_properties(self, device: Any = None) -> Any:
        raise NotImplementedError

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        return True

    def is_tf32_supported(self) -> bool:
        return False

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    def get_arch_list(self) -> list[str]:
        return []

    def get_gencode_flags(self) -> str:
        return ""

    def empty_cache(self) -> None:
        pass

    def memory_stats(self, device: Any = None) -> dict[str, Any]:
        raise NotImplementedError

    def memory_allocated(self, device: Any = None) -> int:
        return int(self.memory_stats(device).get("allocated_bytes.all.current", 0))

    def max_memory_allocated(self, device: Any = None) -> int:
        return int(self.memory_stats(device).get("allocated_bytes.all.peak", 0))

    def memory_reserved(self, device: Any = None) -> int:
        return int(self.memory_stats(device).get("reserved_bytes.all.current", 0))

    def max_memory_reserved(self, device: Any = None) -> int:
        return int(self.memory_stats(device).get("reserved_bytes.all.peak", 0))

    memory_cached = memory_reserved
    max_memory_cached = max_memory_reserved

    def memory_stats_as_nested_dict(self, device: Any = None) -> dict[str, Any]:
        nested: dict[str, Any] = {}
        for name, value in self.memory_stats(device).items():
            *path, last = name.split(".")
            inner = nested
            for part in path:
                inner = inner.setdefault(part, {})
            inner[last] = value
        return nested

    def memory_summary(self, device: Any = None, abbreviated: bool = False) -> str:
        stats = self.memory_stats(device)
        return "\n".join(f"{name:<40}{value:>16}" for name, value in stats.items())

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        raise NotImplementedError

    def device_memory_used(self, device: Any = None) -> int:
        free, total = self.mem_get_info(device)
        return total - free

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        raise NotImplementedError

    def reset_accumulated_memory_stats(self, device: Any = None) -> None:
        pass

    def reset_max_memory_allocated(self, device: Any = None) -> None:
        self.reset_peak_memory_stats(device)

    reset_max_memory_cached = reset_max_memory_allocated

    def host_memory_stats(self) -> dict[str, Any]:
        return collections.OrderedDict()  # CUDA's is empty too while nothing is pinned

    host_memory_stats_as_nested_dict = host_memory_stats

    def reset_peak_host_memory_stats(self) -> None:
        pass

    reset_accumulated_host_memory_stats = reset_peak_host_memory_stats

    def set_per_process_memory_fraction(self, fraction: float, device: Any = None) -> None:
        raise NotImplementedError

    def get_per_process_memory_fraction(self, device: Any = None) -> float:
        raise NotImplementedError

    def get_allocator_backend(self) -> str:
        return "native"

    def manual_seed_all(self, seed: int) -> None:
        self.manual_seed(seed)

    def seed_all(self) -> None:
        self.seed()

    def manual_seed(self, seed: int) -> None:
        raise NotImplementedError

    def seed(self) -> None:
        raise NotImplementedError

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        raise NotImplementedError

    def set_rng_state(self, new_state: torch.Tensor, device: Any = None) -> None:
        raise NotImplementedError

    def get_rng_state_all(self) -> list[torch.Tensor]:
        """One state, so that a program that saves and restores all of them gets it back."""
        return [self.get_rng_state()]

    def set_rng_state_all(self, new_states: Any) -> None:
        """The first, where a file has the states of several devices."""
        for state in list(new_states)[:1]:
            self.set_rng_state(state)

    def synchronize(self, device: Any = None) -> None:
        raise NotImplementedError

    def get_sync_debug_mode(self) -> int:
        return 0

    def set_sync_debug_mode(self, debug_mode: int | str) -> None:
        warn_once("torch.cuda.set_sync_debug_mode", f"finds no waits on {self.kind}")

    def caching_allocator_enable(self, value: bool = True) -> None:
        warn_once("torch.cuda.caching_allocator_enable", f"changes nothing on {self.kind}")

    def check_error(self, res: int) -> None:
        if int(res) != 0:
            raise torch.cuda.CudaError(int(res))

    def cudart(self) -> Any:
        """The functions of CUDA's runtime that programs call from Python."""

        def synchronize() -> int:
            self.synchronize()
            return 0

        return _Runtime(
            cudaDeviceSynchronize=synchronize,
            cudaMemGetInfo=lambda device=None: self.mem_get_info(device),
            cudaStreamCreate=lambda *args: torch.cuda.Stream(),
            cudaProfilerStart=lambda: 0,
            cudaProfilerStop=lambda: 0,
            cudaError=types.SimpleNamespace(success=0),
        )
