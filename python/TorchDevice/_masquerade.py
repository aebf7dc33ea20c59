"""`torch.cuda` while something else is in use: its attributes answer for that device.

`_table.py` says what becomes of each name. With real CUDA nothing is replaced.
"""

from __future__ import annotations

import functools
import importlib
import threading
from typing import Any

import torch

from torch_remote_patches import Patches

from . import _C, _accelerator, _amp, _comm, _distributed, _graphs, _kernels, _mps_names
from ._callers import truth_for_listed
from ._claim import if_claimed
from ._own import noted_function, own_function
from ._table import ANSWERED, KERNELS, REFUSED, REFUSED_BELOW, SNAPSHOTS
from ._target import Target, refusal

_changes = Patches()
_target: list[Target] = []
# What libraries ask before they use something that only CUDA has.
_PROBES = {
    "is_available",
    "is_initialized",
    "device_count",
    "is_bf16_supported",
    "get_device_properties",
}
# What a program is told if it is not to take the accelerator for CUDA.
_NOT_CLAIMED = {"is_available": lambda: False, "device_count": lambda: 0}
_MODULES = ("memory", "random", "streams", "graphs")
_RANDOM = {
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "initial_seed",
    "get_rng_state",
    "set_rng_state",
    "get_rng_state_all",
    "set_rng_state_all",
}


def make_target(accelerator: str) -> Target:
    """The target for what `_C.accelerator()` says: cpu, mps or remote."""
    name = {"cpu": "CpuTarget", "mps": "MpsTarget", "remote": "RemoteTarget"}[accelerator]
    module = importlib.import_module(f"{__package__}._target_{accelerator}")
    target: Target = getattr(module, name)()
    return target


def current_target() -> Target | None:
    """What answers for `torch.cuda` now; None: torch's own CUDA."""
    return _target[0] if _target else None


def _refusing(name: str, advice: str) -> Any:
    def refused(*args: Any, **kwargs: Any) -> Any:
        raise refusal(name, advice)

    refused.__name__ = refused.__qualname__ = name.rpartition(".")[2]
    return refused


def install(accelerator: str) -> None:
    """Replaces what was installed before. Does nothing for real CUDA."""
    remove()
    if accelerator == "cuda":
        return
    target = make_target(accelerator)
    _target.append(target)
    if accelerator == "cpu":
        _C.install_host_allocator()
    modules = [importlib.import_module(f"torch.cuda.{name}") for name in _MODULES]
    for owner in (torch.cuda, *modules):
        _answer(owner, target)
    for module, names in REFUSED_BELOW.items():
        owner = importlib.import_module(f"torch.cuda.{module}")
        for name, advice in names.items():
            if hasattr(owner, name):
                _changes.patch(owner, name, _refusing(f"{module}.{name}", advice))
    # A name that torch.remote has, and torch's other device modules.
    _changes.patch(
        torch.cuda, "get_amp_supported_dtype", own_function(target.get_amp_supported_dtype)
    )
    _replace_random(target)
    _replace_private(target)
    _refuse_tunable()
    _replace_nvtx()
    _replace_fork_rng(target)
    is_built = if_claimed("cuda", target.is_available, _NOT_CLAIMED["is_available"])
    is_built = truth_for_listed(is_built, torch.backends.cuda.is_built)
    _changes.patch(torch.backends.cuda, "is_built", is_built)
    _comm.install(_changes, target)
    _accelerator.install(_changes, target)
    _distributed.install(_changes, target)
    _kernels.install(_changes, target.kind)
    _amp.install(_changes, target.kind)
    _graphs.install(_changes, target.kind)
    _mps_names.install(_changes, target)


def remove() -> None:
    _C.remove_host_allocator()
    _changes.undo_all()
    _target.clear()
    # torch remembers the module of "cuda", which depends on the target.
    if hasattr(torch.get_device_module, "cache_clear"):
        torch.get_device_module.cache_clear()


def _answer(owner: Any, target: Target) -> None:
    for name in ANSWERED & vars(owner).keys():
        answer = getattr(target, name)
        if name in _NOT_CLAIMED:
            answer = if_claimed("cuda", answer, _NOT_CLAIMED[name])
        if name in _PROBES:
            answer = truth_for_listed(answer, vars(owner)[name])
        else:
            answer = noted_function(answer, f"torch.cuda.{name}")
        _changes.patch(owner, name, answer)
    for name, advice in REFUSED.items():
        if name in vars(owner):
            _changes.patch(owner, name, _refusing(name, advice))


def _replace_random(target: Target) -> None:
    """While the CPU override is on, random numbers come from the CPU's generator."""
    if target.kind == "cpu":
        return
    of_the_cpu = make_target("cpu")
    for owner in (torch.cuda, importlib.import_module("torch.cuda.random")):
        for name in _RANDOM & vars(owner).keys():
            chosen = _by_override(vars(owner)[name], getattr(of_the_cpu, name))
            _changes.patch(owner, name, chosen)


def _by_override(answer: Any, of_the_cpu: Any) -> Any:
    @functools.wraps(answer)
    def call(*args: Any, **kwargs: Any) -> Any:
        is_overridden = not torch.compiler.is_dynamo_compiling() and _C.is_overridden()
        return (of_the_cpu if is_overridden else answer)(*args, **kwargs)

    del call.__wrapped__
    return call


def _refuse_tunable() -> None:
    """It tunes the choice of a GPU's kernels."""
    tunable = importlib.import_module("torch.cuda.tunable")
    for name in tunable.__all__:
        advice = "it tunes kernels of a local GPU, and there is none"
        _changes.patch(tunable, name, _refusing(f"tunable.{name}", advice))


def _replace_private(target: Target) -> None:
    """What torch itself calls: nothing is to be initialised."""
    _changes.patch(torch.cuda, "_lazy_init", lambda: None)
    if hasattr(torch.cuda, "_compile_kernel"):
        _changes.patch(torch.cuda, "_compile_kernel", _refusing("_compile_kernel", KERNELS))
    for name in SNAPSHOTS & vars(torch.cuda.memory).keys():
        _changes.patch(torch.cuda.memory, name, own_function(target.snapshot_function(name)))


def _replace_nvtx() -> None:
    """Ranges appear in torch.profiler."""
    nvtx = importlib.import_module("torch.cuda.nvtx")
    this_thread = threading.local()

    def open_ranges() -> list[Any]:
        ranges: list[Any] = this_thread.__dict__.setdefault("ranges", [])
        return ranges

    def range_push(msg: str) -> int:
        ranges = open_ranges()
        ranges.append(torch.profiler.record_function(msg))
        ranges[-1].__enter__()
        return len(ranges) - 1

    def range_pop() -> int:
        ranges = open_ranges()
        if ranges:
            ranges.pop().__exit__(None, None, None)
        return len(ranges)

    def mark(msg: str) -> None:
        with torch.profiler.record_function(msg):
            pass

    def range_start(msg: str) -> Any:
        record = torch.profiler.record_function(msg)
        record.__enter__()
        return record

    def range_end(range_id: Any) -> None:
        range_id.__exit__(None, None, None)

    for function in (range_push, range_pop, mark, range_start, range_end):
        _changes.patch(nvtx, function.__name__, function)
    profiler = importlib.import_module("torch.cuda.profiler")
    for name in ("start", "stop"):
        if name in vars(profiler):
            _changes.patch(profiler, name, lambda: None)


def _replace_fork_rng(target: Target) -> None:
    """On the CPU there is only torch's own generator, which `fork_rng` always restores."""
    if target.kind != "cpu":
        return
    fork_rng = torch.random.fork_rng

    @functools.wraps(fork_rng)
    def of_the_cpu(devices: Any = None, *args: Any, **kwargs: Any) -> Any:
        return fork_rng((), *args, **kwargs)

    _changes.patch(torch.random, "fork_rng", of_the_cpu)
