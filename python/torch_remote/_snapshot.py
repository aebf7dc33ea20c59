"""Memory snapshots in the schema of `torch.cuda.memory._snapshot`, for PyTorch's memory viewer.

This process records which storages it makes and frees, with its Python stacks. Each storage is a
segment of its own. What the server's allocator has besides them is one more segment for a device,
so that the sums over segments are the server's own figures.
"""

from __future__ import annotations

import inspect
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch

from . import _C
from ._backend import DeviceLike, refuse_in_bad_fork

Segment: TypeAlias = "dict[str, Any]"
Frames: TypeAlias = "list[dict[str, Any]]"

_ACTIONS = (  # by MemoryEventKind in client/process/memory_history.h
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "oom",
    "snapshot",
)
_STACKS = (None, "state", "alloc", "all")  # by RecordedStacks, there too
_UNIT = 512  # kSegmentUnit, there too
_LARGE = 1 << 20  # larger segments are "large" to CUDA's allocator
_SERVERS_OWN = 1 << 59  # no storage has an address below 1 << 60


def _record(
    enabled: str | None = "all",
    context: str | None = "all",
    stacks: str = "all",
    max_entries: int = sys.maxsize,
    device: DeviceLike = None,
    clear_history: bool = False,
    compile_context: bool = False,
    global_record_annotations: bool = False,
    skip_actions: list[str] | None = None,
) -> None:
    if enabled not in (None, "state", "all"):
        raise RuntimeError("expected state to be 'state', 'all', or None")
    if context not in _STACKS:
        raise RuntimeError("expected context to be 'state', 'alloc', 'all', or None")
    if stacks not in ("python", "all"):
        raise RuntimeError("expected stacks to be 'python', or 'all'")
    skipped = skip_actions or []
    for action in skipped:
        if action not in _ACTIONS:
            raise RuntimeError(f"skip_actions has {action!r}, which is none of {list(_ACTIONS)}")
    _C.record_memory(
        enabled is not None,
        _STACKS.index(context),
        min(max_entries, sys.maxsize) if enabled == "all" else 1,
        clear_history,
        [_ACTIONS.index(action) for action in skipped],
    )


def _record_as_before(
    enabled: bool,
    record_context: bool = True,
    trace_alloc_max_entries: int = 1,
    trace_alloc_record_context: bool = False,
    device: DeviceLike = None,
    record_context_cpp: bool = False,
    clear_history: bool = False,
    compile_context: bool = False,
    global_record_annotations: bool = False,
    skip_actions: list[str] | None = None,
) -> None:
    context = "all" if trace_alloc_record_context else "state" if record_context else None
    _record(
        "all" if enabled else None,
        context,
        max_entries=trace_alloc_max_entries,
        clear_history=clear_history,
        skip_actions=skip_actions,
    )


def _record_memory_history(enabled: Any = "all", *args: Any, **kwargs: Any) -> None:
    """Starts or stops to record what makes and frees memory, as `torch.cuda.memory` does.

    For all devices. The stacks are Python's; those of C++ are not recorded.
    """
    (_record_as_before if isinstance(enabled, bool) else _record)(enabled, *args, **kwargs)


_record_memory_history.__signature__ = inspect.signature(_record)  # type: ignore[attr-defined]


def _frames(stack: list[tuple[str, int, str]]) -> Frames:
    return [{"filename": file, "line": line, "name": name} for file, line, name in stack]


def _segment(
    device: int, address: int, stream: int, sizes: tuple[int, int, int], frames: Frames
) -> Segment:
    """A segment with one block in use. The sizes are of the segment, the block, and its tensor."""
    total, used, requested = sizes
    blocks = []
    if used:
        blocks.append(
            {
                "address": address,
                "size": used,
                "requested_size": requested,
                "state": "active_allocated",
                "frames": frames,
            }
        )
    if total > used:
        blocks.append(
            {
                "address": address + used,
                "size": total - used,
                "requested_size": 0,
                "state": "inactive",
                "frames": [],
            }
        )
    return {
        "device": device,
        "address": address,
        "total_size": total,
        "allocated_size": used,
        "active_size": used,
        "requested_size": requested,
        "stream": stream,
        "segment_type": "large" if total > _LARGE else "small",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": frames,
        "blocks": blocks,
    }


def _rest(device: int, figures: dict[str, int], segments: Sequence[Segment]) -> Segment | None:
    """What the server's allocator has besides our storages: workspaces, and memory it keeps."""

    def left(figure: str, key: str) -> int:
        known: int = sum(segment[key] for segment in segments)
        return max(0, figures.get(f"{figure}.all.current", 0) - known)

    used = left("allocated_bytes", "allocated_size")
    total = max(used, left("reserved_bytes", "total_size"))
    if total == 0:
        return None
    requested = min(used, left("requested_bytes", "requested_size"))
    return _segment(device, _SERVERS_OWN + (device << 48), 0, (total, used, requested), [])


def _ask(device: int) -> dict[str, int]:
    try:
        return _C.memory_figures(device, 0)
    except (torch.OutOfMemoryError, NotImplementedError):
        return {}  # no memory for storages that have none yet, or a server that tells no figures


def _device_snapshot(device: int, with_events: bool) -> tuple[list[Segment], list[dict[str, Any]]]:
    if _C.memory_history(device, False) is None:
        return [], []
    figures = _ask(device)
    history = _C.memory_history(device, with_events)
    if history is None:
        return [], []
    storages, events, stacks = history
    frames = [_frames(stack) for stack in stacks]
    is_cuda = _C.device_properties(device)["kind"] == "cuda"
    segments = []
    for address, size, stream, stack in sorted(storages):
        total = -(-size // _UNIT) * _UNIT
        sizes = (total, total if is_cuda else size, size)
        segments.append(
            _segment(device, address, stream, sizes, frames[stack] if stack >= 0 else [])
        )
    rest = _rest(device, figures, segments)
    return segments + ([rest] if rest is not None else []), [
        _event(event, frames) for event in events
    ]


def _event(event: tuple[int, int, int, int, int, int], frames: list[Frames]) -> dict[str, Any]:
    kind, address, size, stream, time_us, stack = event
    action = _ACTIONS[kind]
    entry: dict[str, Any] = {
        "action": action,
        "device_free" if action == "oom" else "addr": address,
        "size": size,
        "stream": stream,
        "time_us": time_us,
        "compile_context": "N/A",
        "user_metadata": "",
        "pool_id": (0, 0),
    }
    if stack >= 0:
        entry["frames"] = frames[stack]
    return entry


def _all_devices(with_events: bool) -> tuple[list[Segment], list[list[dict[str, Any]]]]:
    refuse_in_bad_fork()
    indices = [index for id in _C.machine_ids() for index in _C.machine_devices(id)]
    segments: list[Segment] = []
    traces: list[list[dict[str, Any]]] = [[] for _ in range(max(indices, default=-1) + 1)]
    for index in sorted(indices):
        own, traces[index] = _device_snapshot(index, with_events)
        segments += own
    return segments, traces


def memory_snapshot(mempool_id: Any = None, include_traces: bool = True) -> list[Segment]:
    """The memory of all devices, as `torch.cuda.memory_snapshot`. Waits once for each device.

    Each tensor's storage is a segment; frames are there if they were recorded.
    """
    return _all_devices(False)[0]


def _snapshot(device: DeviceLike = None, augment_with_fx_traces: bool = False) -> dict[str, Any]:
    """`memory_snapshot()` with the recorded history, as `torch.cuda.memory._snapshot`."""
    segments, traces = _all_devices(True)
    snapshot = {
        "segments": segments,
        "device_traces": traces,
        "allocator_settings": {
            "PYTORCH_CUDA_ALLOC_CONF": "",
            "PYTORCH_ALLOC_CONF": "",
            "max_split_size": -1,
            "garbage_collection_threshold": 0.0,
            "expandable_segments": False,
            "pinned_num_register_threads": 1,
            "release_lock_on_malloc": False,
            "pinned_use_host_register": False,
            "roundup_power2_divisions": {},
        },
        "external_annotations": [],
    }
    if augment_with_fx_traces:
        from torch.cuda import memory

        snapshot = memory._augment_memory_snapshot_stack_traces(snapshot)
    return snapshot


def _dump_snapshot(
    filename: str = "dump_snapshot.pickle", augment_with_fx_traces: bool = False
) -> None:
    """Writes `_snapshot()` to a file for the viewer at pytorch.org/memory_viz."""
    snapshot = _snapshot(augment_with_fx_traces=augment_with_fx_traces)
    with Path(filename).open("wb") as file:
        pickle.dump(snapshot, file, protocol=4)  # the viewer reads no newer one


def _allocation_traceback(data_ptr: int) -> Frames | None:
    """The frames that made the storage at this address; None if they were not recorded."""
    stack = _C.allocation_stack(data_ptr)
    return None if stack is None else _frames(stack)


def _save_segment_usage(
    filename: str = "output.svg", snapshot: dict[str, Any] | None = None
) -> None:
    from torch.cuda._memory_viz import segments

    with Path(filename).open("w") as file:
        file.write(segments(snapshot or _snapshot()))


def _save_memory_usage(
    filename: str = "output.svg", snapshot: dict[str, Any] | None = None
) -> None:
    from torch.cuda._memory_viz import memory

    with Path(filename).open("w") as file:
        file.write(memory(snapshot or _snapshot()))
