"""`torch.mps.*` on machines that are not Apple's: the device in use answers."""

from __future__ import annotations

from typing import Any

import torch
import torch.mps.profiler

from torch_remote_patches import Patches

from ._callers import truth_for_listed
from ._own import own_function
from ._target import Target

_NO_METAL = "Metal does not run on this device; write the function with torch operators"


def _refused(name: str) -> Any:
    def refused(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"torch.mps.{name} has no equivalent on this device: {_NO_METAL}")

    return refused


def _answers(target: Target) -> dict[str, Any]:
    return {
        "device_count": target.device_count,
        "synchronize": target.synchronize,
        "empty_cache": target.empty_cache,
        "manual_seed": target.manual_seed,
        "seed": target.seed,
        "get_rng_state": target.get_rng_state,
        "set_rng_state": target.set_rng_state,
        "set_per_process_memory_fraction": target.set_per_process_memory_fraction,
        "current_allocated_memory": target.memory_allocated,
        "driver_allocated_memory": target.memory_reserved,
        "recommended_max_memory": lambda: target.mem_get_info()[1],
        "Event": getattr(target, "Event", None),
    }


def install(changes: Patches, target: Target) -> None:
    if target.kind == "mps" or torch.backends.mps.is_built():
        return
    for name, answer in _answers(target).items():
        if hasattr(torch.mps, name):
            changes.patch(torch.mps, name, own_function(answer))
    for name in ("compile_shader", "metal_capture"):
        for owner in (torch.mps, torch.mps.profiler):
            if hasattr(owner, name):
                changes.patch(owner, name, _refused(name))
    for name in ("is_available", "is_built"):
        truth = getattr(torch.backends.mps, name)
        changes.patch(torch.backends.mps, name, truth_for_listed(target.is_available, truth))
    # torch.profiler records the device in use, without Apple's signposts.
    for name in ("start", "stop"):
        changes.patch(torch.mps.profiler, name, lambda *args, **kwargs: None)
