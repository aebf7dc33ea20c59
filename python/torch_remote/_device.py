"""The device module: `torch.remote`, for users and for PyTorch itself.

It has the functions of `torch.cuda`, so that code for one runs on the other. Asking whether there
are devices, and how many, does not start a server; the first tensor does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from . import _C, _tensor_types
from . import _amp as amp
from . import _memory as memory
from . import _random as random
from . import _streams as streams
from ._backend import (
    DeviceLike,
    configured_url,
    device_count,
    device_index,
    existing_index,
    is_ours,
    refuse_in_bad_fork,
    start_default,
)
from ._machines import server_path
from ._memory import (
    empty_cache,
    get_per_process_memory_fraction,
    max_memory_allocated,
    max_memory_cached,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_cached,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    memory_stats_as_nested_dict,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_max_memory_allocated,
    reset_max_memory_cached,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
)
from ._optimizers import forget_done
from ._random import (
    default_generators,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from ._streams import (
    Event,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    set_stream,
    stream,
)
from ._telemetry import (
    clock_rate,
    device_memory_used,
    list_gpu_processes,
    memory_usage,
    power_draw,
    temperature,
    utilization,
)

__all__ = [
    "DeviceProperties",
    "Event",
    "Stream",
    "StreamContext",
    "amp",
    "can_device_access_peer",
    "clock_rate",
    "current_device",
    "current_stream",
    "default_generators",
    "default_stream",
    "device",
    "device_count",
    "device_memory_used",
    "device_of",
    "empty_cache",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_per_process_memory_fraction",
    "get_rng_state",
    "get_rng_state_all",
    "init",
    "initial_seed",
    "ipc_collect",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "list_gpu_processes",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "memory_usage",
    "power_draw",
    "random",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "streams",
    "synchronize",
    "temperature",
    "utilization",
]
__all__ += [*_tensor_types.NAMES, *_tensor_types.STORAGES]


def __getattr__(attribute: str) -> Any:
    # torch.utils.checkpoint reads `_initialized` as a variable, but its value is in C++.
    if attribute == "_initialized":
        return is_initialized()
    if attribute in _tensor_types.NAMES:
        return _tensor_types.tensor_type(attribute)
    if attribute in _tensor_types.STORAGES:
        return _tensor_types.storage_type(attribute)
    raise AttributeError(f"module {__name__!r} has no attribute {attribute!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *(each for each in globals() if each.startswith("_"))})


def _lazy_init() -> None:
    # PyTorch calls this before pinned memory, streams and compiling, which need no server.
    refuse_in_bad_fork()


def _is_in_bad_fork() -> bool:
    return _C.is_in_bad_fork()


def init() -> None:
    """Connects to the default machine if no machine is connected, also after `Machine.stop()`."""
    start_default()


def is_initialized() -> bool:
    """Whether a machine is connected to this process."""
    return _C.is_initialized() and not _C.is_in_bad_fork()


def is_available() -> bool:
    """Whether a machine is connected or configured, or a server is installed.

    Uses no network, so a configured machine may still be unreachable.
    """
    return _C.is_initialized() or server_path().exists() or configured_url() is not None


def current_device() -> int:
    """The index of this thread's current device."""
    return _C.current_device()


def set_device(device: DeviceLike) -> None:
    """Makes a device this thread's current one; -1 changes nothing, as with CUDA."""
    if device_index(device) != -1:
        _C.set_device(existing_index(device))


class device:
    """Context manager: another current device for a block. -1 changes nothing."""

    def __init__(self, device: DeviceLike) -> None:
        self.idx = -1 if device_index(device) == -1 else existing_index(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = _C.maybe_exchange_device(self.idx)

    def __exit__(self, *exception: object) -> None:
        _C.maybe_exchange_device(self.prev_idx)


class device_of(device):
    """Context manager: the device of a tensor or storage. Does nothing if it is not ours."""

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.get_device() if is_ours(obj) else -1)


def synchronize(device: DeviceLike = None) -> None:
    """Waits for everything sent to the device. Raises failures that were not raised yet."""
    refuse_in_bad_fork()
    index = existing_index(device)
    if _C.is_initialized():
        _C.synchronize(index)
        forget_done()


def get_device_capability(device: DeviceLike = None) -> tuple[int, int]:
    """Major and minor compute capability of a CUDA device; (0, 0) of a CPU. Connects if need be."""
    properties = get_device_properties(device)
    return properties.major, properties.minor


def can_device_access_peer(device: DeviceLike, peer_device: DeviceLike) -> bool:
    """Whether a copy between the two stays on their server."""
    here, there = existing_index(device), existing_index(peer_device)
    machines = [set(_C.machine_devices(machine)) for machine in _C.machine_ids()]
    return here != there and any({here, there} <= devices for devices in machines)


def ipc_collect() -> None:
    """Does nothing: processes share no memory of a remote device."""


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that `torch.autocast` may choose on this device."""
    return [torch.float16, torch.bfloat16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether bfloat16 works on the current device.

    Without emulation: whether the server has a GPU with bfloat16 in hardware. Connects if need be.
    """
    if including_emulation:
        return is_available()
    return get_device_properties().major >= 8


@dataclass(frozen=True)
class DeviceProperties:
    """What the server says about one of its devices."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int
    kind: str
    host: str

    def __repr__(self) -> str:
        return (
            f"_RemoteDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory // 2**20}MB, "
            f"multi_processor_count={self.multi_processor_count}, "
            f"kind='{self.kind}', host='{self.host}')"
        )


def get_device_properties(device: DeviceLike = None) -> DeviceProperties:
    """The server's figures for a device. Connects if need be."""
    refuse_in_bad_fork()
    values: dict[str, Any] = dict(_C.device_properties(existing_index(device)))
    return DeviceProperties(**{field: values[field] for field in DeviceProperties.__annotations__})


def get_device_name(device: DeviceLike = None) -> str:
    """The server's name for the device. Connects if need be."""
    return get_device_properties(device).name
