"""Collectives between servers: the backend of `torch.distributed`, and those of one program.

`torch.distributed.init_process_group("remote")` is for programs with one process for each rank.
The functions here are for one process that uses the devices of several machines. In both the
tensors go from server to server, by Gloo or NCCL, and this process waits for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import torch

from . import _C, _backend, _patches

__all__ = ["all_gather", "all_reduce", "allow_connections", "broadcast"]

_Key = tuple[tuple[int, int], ...]  # of each tensor: its machine, its device
_groups: dict[_Key, list[Any]] = {}  # a c10d Backend for each rank


def allow_connections() -> None:
    """Embedded servers that start from now on may connect to other servers.

    `init_process_group("remote")` calls this. Other servers need `torch-remote serve --peers`.
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


def _install() -> None:
    """Makes torch.distributed know the backend."""
    if not torch.distributed.is_available():
        return
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
