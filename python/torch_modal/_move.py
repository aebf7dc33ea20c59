"""Moves all live tensors of a machine to another one that takes over its device indices.

Tensors keep their identity, values, gradients and aliases: each storage is read, and all tensors of
it are set to a new storage with the same bytes. The states of all generators move too.

Only storages of tensors that Python can find are moved. If others are live, such as those that an
autograd graph has saved, nothing is moved and an error says so.
"""

from __future__ import annotations

import gc
from typing import Any

import torch

import torch_remote
from torch_remote import _C, _backend, _launch


def move(machines: list[int], url: str) -> None:
    """Ends the machines. Another one, at this URL, gets their devices and tensors."""
    torch_remote.synchronize()
    indices = [index for machine in machines for index in _C.machine_devices(machine)]
    groups = _by_storage(_live_tensors())
    if _C.counters()["storages_live"] > len(groups):
        raise RuntimeError(
            "torch_modal cannot move tensors that only PyTorch holds, such as those that an "
            "autograd graph or a sparse tensor has, to another machine: call backward() or drop "
            "the results first"
        )
    moving = [group for group in groups if group[0].device.index in indices]
    reached = _reach(url)
    contents = [_bytes_of(group[0]).cpu() for group in moving]
    generators = [_C.default_generator(index) for index in indices]
    generators += [each for each in _C.announced_generators() if each.device.index in indices]
    states = [each.get_state().clone() for each in generators]
    for machine in machines:
        torch_remote.Machine(machine).stop()
    _launch.connect_default(url, beside=None if reached is None else reached.id)
    if reached is not None:
        reached.stop()
    for group, content in zip(moving, contents, strict=True):
        _set_storage(group, content)
    for generator, state in zip(generators, states, strict=True):
        _put_back_state(generator, state)


def _live_tensors() -> list[torch.Tensor]:
    """All strided tensors on our devices that have, or can get, a Python object."""
    gc.collect()  # a tensor in a dead cycle would still be live
    found = [each for each in gc.get_objects() if _is_plain(type(each))]
    found += [each.grad for each in found if each.is_leaf and each.grad is not None]
    return [each for each in found if _backend.is_ours(each) and each.layout is torch.strided]


def _is_plain(kind: Any) -> bool:
    """Not a wrapper, such as a fake tensor; what it wraps is found by itself."""
    return (
        issubclass(kind, torch.Tensor)
        and kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__
    )


def _by_storage(tensors: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    groups: dict[int, dict[int, torch.Tensor]] = {}
    for each in tensors:
        groups.setdefault(each.untyped_storage()._cdata, {})[id(each)] = each
    return [list(group.values()) for group in groups.values()]


def _reach(url: str) -> torch_remote.Machine | None:
    """Connects to it. Raises before anything is lost if there is no such machine."""
    return None if url == "local" else torch_remote.connect(url)


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def _set_storage(tensors: list[torch.Tensor], content: torch.Tensor) -> None:
    storage = content.to(tensors[0].device).untyped_storage()
    for each in tensors:
        each.data = torch.empty(0, dtype=each.dtype, device=each.device).set_(
            storage, each.storage_offset(), each.size(), each.stride()
        )


def _put_back_state(generator: torch.Generator, state: torch.Tensor) -> None:
    """A CPU and a CUDA device have different states: then the generator starts from its seed."""
    try:
        generator.set_state(state)
    except RuntimeError:
        generator.manual_seed(generator.initial_seed())
