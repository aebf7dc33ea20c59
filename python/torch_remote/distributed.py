"""Collectives between servers: the backend of `torch.distributed`, and those of one program.

`torch.distributed.init_process_group("remote")` is for programs with one process for each rank.
The functions here are for one process that uses the devices of several machines. In both the
tensors go from server to server, by Gloo or NCCL, and this process waits for nothing.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import Any

import torch

from . import _C, _backend, _patches

__all__ = ["all_gather", "all_reduce", "allow_connections", "broadcast"]

_Key = tuple[tuple[int, int], ...]  # of each tensor: its machine, its device
_groups: dict[_Key, list[Any]] = {}  # a c10d Backend for each rank


def allow_connections() -> None:
    """Embedded servers that start from now on may connect to other servers.

    `init_process_group("remote")` calls this, and so does the import in a process that may be a
    rank: of torchrun, of `mp.spawn`, or with RANK and WORLD_SIZE set. Other servers need
    `torch-remote serve --peers`.
    """
    _backend.allow_connections()


def all_reduce(tensors: Sequence[torch.Tensor], op: Any = None) -> None:
    """Reduces the tensors, one on each machine, and gives each of them the result."""
    from torch.distributed import AllreduceOptions, ReduceOp

    options = AllreduceOptions()
    options.reduceOp = ReduceOp.SUM if op is None else op
    for group, tensor in zip(_open(tensors), tensors, strict=True):
        group.allreduce([tensor], options)


def broadcast(tensors: Sequence[torch.Tensor], src: int = 0) -> None:
    """Gives all tensors, one on each machine, the values of the one at the position `src`."""
    from torch.distributed import BroadcastOptions

    options = BroadcastOptions()
    options.rootRank = range(len(tensors))[src]
    for group, tensor in zip(_open(tensors), tensors, strict=True):
        group.broadcast([tensor], options)


def all_gather(tensors: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Copies all tensors, one on each machine, to each machine: a list for each."""
    groups = _open(tensors)
    outputs = [[torch.empty_like(tensor) for _ in tensors] for tensor in tensors]
    for group, output, tensor in zip(groups, outputs, tensors, strict=True):
        group.allgather([output], [tensor])
    return outputs


def _machine_of(tensor: torch.Tensor) -> int:
    if tensor.device.type != _backend.name():
        raise ValueError(f"expected tensors on `{_backend.name()}`, got one on {tensor.device}")
    return next(id for id in _C.machine_ids() if tensor.device.index in _C.machine_devices(id))


def _open(tensors: Sequence[torch.Tensor]) -> list[Any]:
    """A process group over the machines of the tensors; kept for the next call."""
    key = tuple((_machine_of(tensor), tensor.device.index) for tensor in tensors)
    if len({machine for machine, _ in key}) < len(key):
        raise ValueError("expected each tensor on another machine: a server has one rank")
    if key not in _groups:
        _groups[key] = _open_ranks([device for _, device in key])
    return _groups[key]


def _open_ranks(devices: list[int]) -> list[Any]:
    from torch.distributed import HashStore
    from torch.distributed.constants import default_pg_timeout

    store = HashStore()

    def open_rank(rank: int) -> Any:
        time = _milliseconds(default_pg_timeout)
        return _C.open_process_group(store, rank, len(devices), time, devices[rank])

    # Each waits for the others.
    with ThreadPoolExecutor(len(devices)) as threads:
        return list(threads.map(open_rank, range(len(devices))))


def _milliseconds(time: timedelta) -> int:
    return int(time / timedelta(milliseconds=1))


def _make_backend(options: Any, _: Any) -> Any:
    """For `init_process_group`: one rank, on the machine of the current device."""
    allow_connections()
    return _C.open_process_group(
        options.store,
        options.group_rank,
        options.group_size,
        _milliseconds(options.timeout),
        _C.current_device(),
    )


# Note [Local ranks]
#
# Programs name a rank's device by its local rank: `device_ids=[LOCAL_RANK]`. But a rank that has a
# server of its own has device 0. In the calls of torch.distributed such an index means the rank's
# device, if there is no device of that index.


def _is_missing(index: Any) -> bool:
    return isinstance(index, int) and index >= _backend.device_count()


def _only_device(module: torch.nn.Module) -> int | None:
    """The index of our device that has all of the module; None if there is none or another."""
    tensors = list(chain(module.parameters(), module.buffers()))
    is_one = len({tensor.device for tensor in tensors}) == 1
    return tensors[0].device.index if is_one and _backend.is_ours(tensors[0]) else None


def _wrapping(init: Any) -> Any:
    """DistributedDataParallel.__init__() that takes local ranks."""

    @functools.wraps(init)
    def initialize(
        self: Any, module: Any, device_ids: Any = None, output_device: Any = None, *args: Any,
        **kwargs: Any,
    ) -> None:  # fmt: skip
        own = _only_device(module) if device_ids else None
        if own is not None:
            device_ids = [own if _is_missing(each) else each for each in device_ids]
            output_device = own if _is_missing(output_device) else output_device
        init(self, module, device_ids, output_device, *args, **kwargs)

    return initialize


def _waiting(barrier: Any) -> Any:
    """torch.distributed.barrier() that takes local ranks."""

    @functools.wraps(barrier)
    def wait(
        group: Any = None, async_op: bool = False, device_ids: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        if device_ids and isinstance(device_ids, list) and _is_accelerator():
            device_ids = _existing(device_ids) if _has_ours(group) else None
        return barrier(group, async_op, device_ids, *args, **kwargs)

    return wait


def _existing(device_ids: list[Any]) -> list[Any]:
    """The rank's own device in place of one that does not exist. PyTorch chooses the backend of a
    group with two by the device, so every rank must name one of the same type."""
    return [_C.current_device() if _is_missing(each) else each for each in device_ids]


def _has_ours(group: Any) -> bool:
    """Whether a process group has a backend for our device: not one of Gloo alone."""
    group = group or torch.distributed.group.WORLD
    kinds = getattr(group, "_device_types", ())
    return any(each.type == _backend.name() for each in kinds)


def _is_accelerator() -> bool:
    accelerator = torch.accelerator.current_accelerator()
    return accelerator is not None and accelerator.type == _backend.name()


def _choosing(init: Any) -> Any:
    """init_process_group() without a backend: ours, as PyTorch takes NCCL where CUDA is.

    PyTorch would make ours too, and then look for Gloo, which it has not made.
    """

    @functools.wraps(init)
    def initialize(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        if backend is None and kwargs.get("device_id") is None and _is_accelerator():
            backend = _backend.name()
        init(backend, *args, **kwargs)

    return initialize


def _replace_functions() -> None:
    _patches.wrap(torch.nn.parallel.DistributedDataParallel, "__init__", _wrapping)
    barrier = _waiting(torch.distributed.barrier)
    init = _choosing(torch.distributed.init_process_group)
    for module in (torch.distributed, torch.distributed.distributed_c10d):
        _patches.patch(module, "barrier", barrier)
        _patches.patch(module, "init_process_group", init)
    meshes = torch.distributed.device_mesh  # init_device_mesh() calls it by a name of its own
    if hasattr(meshes, "init_process_group"):
        _patches.patch(meshes, "init_process_group", init)


def _may_be_rank() -> bool:
    """Whether a launcher may have started this process as a rank: torchrun, mp.spawn, Slurm."""
    # A spawned process imports its main module before it has a parent.
    is_spawned = getattr(multiprocessing.current_process(), "_inheriting", False)
    return bool(
        torch.distributed.is_torchelastic_launched()
        or is_spawned
        or multiprocessing.parent_process() is not None
        or {"RANK", "WORLD_SIZE"} <= os.environ.keys()
    )


def _install() -> None:
    """Makes torch.distributed know the backend."""
    if not torch.distributed.is_available():
        return
    _replace_functions()
    if _may_be_rank():
        allow_connections()  # a rank may use its server before it joins the others
    backend, name = torch.distributed.Backend, _backend.name()
    with _patches.noting(backend):
        backend.register_backend(name, _make_backend, extended_api=True, devices=[name])
    _patches.on_undo(partial(backend.backend_list.remove, name))
    _patches.on_undo(partial(backend._plugins.pop, name.upper()))
    for table in (
        backend.backend_capability,
        backend.backend_type_map,
        backend.default_device_backend_map,
    ):
        _patches.on_undo(partial(table.pop, name))
