"""`torch.mps.*` on machines that are not Apple's: the device in use answers.

Whether MPS is there is the truth, unless programs are told that it is theirs (`_claim.py`).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.mps.profiler

from torch_remote_patches import Patches

from ._callers import truth_for_listed
from ._claim import if_claimed
from ._own import own_function
from ._target import Target

_NO_METAL = "Metal does not run on this device; write the function with torch operators"


def _refused(name: str) -> Any:
    def refused(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"torch.mps.{name} has no equivalent on this device: {_NO_METAL}")

    return refused


def _answers(target: Target) -> dict[str, Any]:
    return {
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


def _replace_probes(changes: Patches, owner: Any, answers: dict[str, Any]) -> None:
    for name, answer in answers.items():
        truth = getattr(owner, name, None)
        if truth is None:  # torch.mps.is_available, in an older torch
            continue
        told = if_claimed("mps", answer, truth)
        changes.patch(owner, name, truth_for_listed(told, truth))


def install(changes: Patches, target: Target) -> None:
    if target.kind == "mps" or torch.backends.mps.is_built():
        return
    for name, answer in _answers(target).items():
        if hasattr(torch.mps, name):
            changes.patch(torch.mps, name, own_function(answer))
    for name in ("compile_shader", "load_metallib", "metal_capture"):
        for owner in (torch.mps, torch.mps.profiler):
            if hasattr(owner, name):
                changes.patch(owner, name, _refused(name))
    probes = {"is_available": target.is_available, "is_built": target.is_available}
    _replace_probes(changes, torch.backends.mps, probes)
    count = {"device_count": lambda: int(target.is_available())}
    _replace_probes(changes, torch.mps, {**count, "is_available": target.is_available})
    # torch.profiler records the device in use, without Apple's signposts.
    for name in ("start", "stop"):
        changes.patch(torch.mps.profiler, name, lambda *args, **kwargs: None)
