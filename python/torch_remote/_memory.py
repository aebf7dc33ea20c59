"""Memory of the devices: the server's own figures, under the names of `torch.cuda.memory`.

Each function asks the server and waits once. Without a machine there is nothing to ask: zeros.
"""

from __future__ import annotations

import collections
from typing import Any

from . import _C
from ._backend import DeviceLike, existing_index, refuse_in_bad_fork
from ._optimizers import forget_done
from ._snapshot import (
    _allocation_traceback,
    _dump_snapshot,
    _record_memory_history,
    _save_memory_usage,
    _save_segment_usage,
    _snapshot,
    memory_snapshot,
)

__all__ = [
    "_allocation_traceback",
    "_dump_snapshot",
    "_record_memory_history",
    "_save_memory_usage",
    "_save_segment_usage",
    "_snapshot",
    "empty_cache",
    "get_per_process_memory_fraction",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
]

_ASK, _EMPTY_CACHE, _RESET_PEAKS, _RESET_TOTALS = range(4)

# The names that torch.cuda.memory_stats() always has.
_OF_POOLS = (
    "active",
    "active_bytes",
    "allocated_bytes",
    "allocation",
    "inactive_split",
    "inactive_split_bytes",
    "requested_bytes",
    "reserved_bytes",
    "segment",
)
_COUNTED = [f"{name}.{pool}" for name in _OF_POOLS for pool in ("all", "large_pool", "small_pool")]
_COUNTED += ["oversize_allocations", "oversize_segments"]
_STATS = {
    "num_alloc_retries": 0,
    "num_ooms": 0,
    **{
        f"{name}.{figure}": 0
        for name in _COUNTED
        for figure in ("current", "peak", "allocated", "freed")
    },
}


def _figures(device: DeviceLike, action: int = _ASK) -> dict[str, int]:
    refuse_in_bad_fork()
    forget_done()
    return _C.memory_figures(existing_index(device), action)


def memory_allocated(device: DeviceLike = None) -> int:
    """Bytes of the tensors on the device now."""
    return _figures(device).get("allocated_bytes.all.current", 0)


def max_memory_allocated(device: DeviceLike = None) -> int:
    """The most bytes that tensors had, since the start or `reset_peak_memory_stats()`."""
    return _figures(device).get("allocated_bytes.all.peak", 0)


def memory_reserved(device: DeviceLike = None) -> int:
    """Bytes that the server's allocator has, for tensors and for later ones."""
    return _figures(device).get("reserved_bytes.all.current", 0)


def max_memory_reserved(device: DeviceLike = None) -> int:
    """The most bytes that the server's allocator had."""
    return _figures(device).get("reserved_bytes.all.peak", 0)


def memory_stats(device: DeviceLike = None) -> dict[str, Any]:
    """All figures of the server's allocator by name, as `torch.cuda.memory_stats`.

    What the server does not count is zero, and so is everything before the first tensor.
    """
    stats = {**_STATS, **_figures(device)}
    memory = {key: value for key, value in stats.items() if key not in ("free", "total")}
    return collections.OrderedDict(sorted(memory.items()))


def memory_stats_as_nested_dict(device: DeviceLike = None) -> dict[str, Any]:
    """The same as dicts within dicts: `["allocated_bytes"]["all"]["current"]`."""
    nested: dict[str, Any] = {}
    for name, value in memory_stats(device).items():
        *path, last = name.split(".")
        inner = nested
        for part in path:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return nested


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """Free and total bytes of the device. `serve --max-memory` limits both."""
    if not _C.is_initialized():
        _C.start_default()
    figures = _figures(device)
    return figures.get("free", 0), figures.get("total", 0)


def empty_cache() -> None:
    """Gives back memory that the servers' allocators, and this process, keep for later tensors."""
    forget_done()
    _C.empty_host_memory()
    for machine in _C.machine_ids():
        for index in _C.machine_devices(machine):
            _C.memory_figures(index, _EMPTY_CACHE)


def set_per_process_memory_fraction(fraction: float, device: DeviceLike = None) -> None:
    """Limits the tensors of this process on the device to a part of its memory; 1.0: no limit.

    A call whose results are over it raises `torch.OutOfMemoryError`, and is not sent. Waits once.
    """
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    refuse_in_bad_fork()
    if not _C.is_initialized():
        _C.start_default()
    _C.set_memory_fraction(existing_index(device), fraction)


def get_per_process_memory_fraction(device: DeviceLike = None) -> float:
    """What `set_per_process_memory_fraction` has set; 1.0 without a limit."""
    return _C.memory_fraction(existing_index(device))


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Peaks start again from what is used now."""
    _figures(device, _RESET_PEAKS)


def reset_accumulated_memory_stats(device: DeviceLike = None) -> None:
    """The sums of what was allocated and freed start again from zero."""
    _figures(device, _RESET_TOTALS)


reset_max_memory_allocated = reset_peak_memory_stats
reset_max_memory_cached = reset_peak_memory_stats
memory_cached = memory_reserved
max_memory_cached = max_memory_reserved

_ROWS = (
    ("allocated_bytes", "Allocated memory"),
    ("active_bytes", "Active memory"),
    ("requested_bytes", "Requested memory"),
    ("reserved_bytes", "Reserved memory"),
    ("inactive_split_bytes", "Non-releasable memory"),
    ("allocation", "Allocations"),
    ("active", "Active allocs"),
    ("segment", "Reserved segments"),
)
_COLUMNS = ("current", "peak", "allocated", "freed")


def _size(value: int) -> str:
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 10 * 1024 or unit == "TiB":
            break
        value //= 1024
    return f"{value} {unit}"


def memory_summary(device: DeviceLike = None, abbreviated: bool = False) -> str:
    """The figures as a table for people."""
    stats = memory_stats(device)
    ooms, retries = stats.get("num_ooms", 0), stats.get("num_alloc_retries", 0)
    lines = [
        f"Memory of device {existing_index(device)}: {ooms} times out of memory, {retries} retries",
        f"{'':<28}" + "".join(f"{column:>14}" for column in _COLUMNS),
    ]
    pools = ("all",) if abbreviated else ("all", "large_pool", "small_pool")
    for key, title in _ROWS:
        for pool in pools:
            if f"{key}.{pool}.current" not in stats:
                continue
            name = title if pool == "all" else f"  from {pool.replace('_', ' ')}"
            values = (stats[f"{key}.{pool}.{column}"] for column in _COLUMNS)
            shown = (_size(value) if "bytes" in key else str(value) for value in values)
            lines.append(f"{name:<28}" + "".join(f"{value:>14}" for value in shown))
    return "\n".join(lines)
