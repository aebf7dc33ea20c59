"""`torch.cuda.comm`, and the functions of torch.nn.parallel that use it.

Torch has what they call for CUDA only. Here it is for an accelerator with one device; torch_remote
has it for remote devices. Everywhere an index means the device that `device="cuda:1"` is.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.parallel import comm

from torch_remote_patches import Patches

from ._target import Target

_Tensors = Sequence[torch.Tensor]
# These have names of their own for the function that makes an index of a device.
_BY_INDEX = ("comm", "_functions", "replicate", "parallel_apply", "data_parallel")


def _functions(kind: str) -> dict[str, Any]:
    def broadcast(tensor: torch.Tensor, devices: Sequence[int]) -> tuple[torch.Tensor, ...]:
        return tuple(tensor.to(kind) for _ in devices)

    def broadcast_coalesced(
        tensors: _Tensors, devices: Sequence[int], buffer_size: int
    ) -> list[list[torch.Tensor]]:
        return [[tensor.to(kind) for tensor in tensors] for _ in devices]

    def scatter(
        tensor: torch.Tensor,
        devices: Sequence[int],
        chunk_sizes: Any,
        dim: int,
        streams: Any = None,
    ) -> tuple[torch.Tensor, ...]:
        chunks = tensor.split(chunk_sizes, dim) if chunk_sizes else tensor.chunk(len(devices), dim)
        return tuple(chunk.to(kind) for chunk in chunks)

    def gather(tensors: _Tensors, dim: int, destination: int | None) -> torch.Tensor:
        place = "cpu" if destination == -1 else kind
        return torch.cat([tensor.to(place) for tensor in tensors], dim)

    def broadcast_out(tensor: torch.Tensor, out: _Tensors) -> tuple[torch.Tensor, ...]:
        return tuple(target.copy_(tensor) for target in out)

    def scatter_out(
        tensor: torch.Tensor, out: _Tensors, dim: int, streams: Any = None
    ) -> tuple[torch.Tensor, ...]:
        chunks = tensor.split([target.size(dim) for target in out], dim)
        return tuple(target.copy_(chunk) for target, chunk in zip(out, chunks, strict=True))

    def gather_out(tensors: _Tensors, out: torch.Tensor, dim: int) -> torch.Tensor:
        return out.copy_(torch.cat([tensor.to(out.device) for tensor in tensors], dim))

    made = (broadcast, broadcast_coalesced, scatter, gather, broadcast_out, scatter_out, gather_out)
    return {f"_{function.__name__}": function for function in made}


# --- what torch refuses for tensors of the CPU


def _reduce_add(inputs: _Tensors, destination: Any = None) -> torch.Tensor:
    for place, each in enumerate(inputs):
        if each.size() != inputs[0].size():
            got, expected = ("x".join(map(str, one.size())) for one in (each, inputs[0]))
            raise ValueError(f"input {place} has invalid size: got {got}, but expected {expected}")
    return functools.reduce(torch.add, inputs)


class _Broadcast:
    """In place of the autograd functions of torch.nn.parallel: views and cat() have gradients."""

    @staticmethod
    def apply(devices: Sequence[Any], *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(tensor.view_as(tensor) for _ in devices for tensor in tensors)


class _Scatter:
    @staticmethod
    def apply(devices: Sequence[Any], sizes: Any, dim: int, tensor: torch.Tensor) -> Any:
        return tensor.split(sizes, dim) if sizes else tensor.chunk(len(devices), dim)


class _Gather:
    @staticmethod
    def apply(device: Any, dim: int, *tensors: torch.Tensor) -> torch.Tensor:
        if dim == 0 and all(tensor.dim() == 0 for tensor in tensors):
            return torch.stack(tensors)
        return torch.cat(tensors, dim)


def _parallel_apply(
    modules: Sequence[Any], inputs: Sequence[Any], kwargs_tup: Any = None, devices: Any = None
) -> list[Any]:
    """One after the other."""
    named = kwargs_tup or [{}] * len(modules)
    return [
        module(*(given if isinstance(given, list | tuple) else [given]), **names)
        for module, given, names in zip(modules, inputs, named, strict=True)
    ]


def _module(name: str) -> Any:
    # torch.nn.parallel has functions of the same names.
    return importlib.import_module(f"torch.nn.parallel.{name}")


def _allow_cpu(changes: Patches) -> None:
    of_cuda = importlib.import_module("torch.cuda.comm")
    for owner in (comm, of_cuda):
        changes.patch(owner, "reduce_add", _reduce_add)
    for owner in (_module("_functions"), _module("scatter_gather")):
        for each in (_Broadcast, _Scatter, _Gather):
            if hasattr(owner, each.__name__[1:]):
                changes.patch(owner, each.__name__[1:], each)
    for owner in (torch.nn.parallel, _module("parallel_apply"), _module("data_parallel")):
        changes.patch(owner, "parallel_apply", _parallel_apply)


def _existing(target: Target) -> Any:
    index_of = torch._utils._get_device_index

    def existing(device: Any, optional: bool = False, allow_cpu: bool = False) -> int | None:
        if target.kind == "cpu":
            return 0  # also for "cuda:1", of which torch would say that it is the CPU
        return target.existing_index(index_of(device, optional, allow_cpu))

    return existing


def install(changes: Patches, target: Target) -> None:
    existing = _existing(target)
    for name in _BY_INDEX:
        if hasattr(_module(name), "_get_device_index"):
            changes.patch(_module(name), "_get_device_index", existing)
    if target.kind == "cpu":
        _allow_cpu(changes)
    if target.kind in ("cpu", "mps"):
        for name, function in _functions(target.kind).items():
            changes.patch(torch._C, name, function)
