"""`nn.DataParallel` and its functions (torch.nn.parallel.comm) over remote devices.

PyTorch has these functions for CUDA only, but uses them for any accelerator. Copies between the
devices of two servers go through this process, so these give correct results, not speed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch
from torch._utils import _get_available_device_type
from torch.nn.parallel import DataParallel, _functions

from ._backend import is_ours, max_devices, name
from ._patches import patch, wrap


def _broadcast(tensor: torch.Tensor, devices: Sequence[int]) -> tuple[torch.Tensor, ...]:
    return tuple(tensor.to(torch.device(name(), index)) for index in devices)


def _broadcast_out(tensor: torch.Tensor, out: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return tuple(target.copy_(tensor) for target in out)


def _broadcast_coalesced(
    tensors: Sequence[torch.Tensor], devices: Sequence[int], buffer_size: int
) -> list[list[torch.Tensor]]:
    return [[tensor.to(torch.device(name(), index)) for tensor in tensors] for index in devices]


def _scatter(
    tensor: torch.Tensor,
    devices: Sequence[int],
    chunk_sizes: Sequence[int] | None,
    dim: int,
    streams: object = None,
) -> tuple[torch.Tensor, ...]:
    chunks = tensor.split(chunk_sizes, dim) if chunk_sizes else tensor.chunk(len(devices), dim)
    places = [torch.device(name(), index) for index in devices]
    return tuple(chunk.to(place) for chunk, place in zip(chunks, places, strict=False))


def _scatter_out(
    tensor: torch.Tensor, out: Sequence[torch.Tensor], dim: int, streams: object = None
) -> tuple[torch.Tensor, ...]:
    chunks = tensor.split([target.size(dim) for target in out], dim)
    return tuple(target.copy_(chunk) for target, chunk in zip(out, chunks, strict=True))


def _gather(tensors: Sequence[torch.Tensor], dim: int, destination: int | None) -> torch.Tensor:
    """To the CPU for -1, and to the current device for None."""
    to_cpu = destination == -1
    place = torch.device("cpu") if to_cpu else torch.device(name(), destination)
    return torch.cat([tensor.to(place) for tensor in tensors], dim)


def _gather_out(tensors: Sequence[torch.Tensor], out: torch.Tensor, dim: int) -> torch.Tensor:
    return out.copy_(torch.cat([tensor.to(out.device) for tensor in tensors], dim))


def _by_device(function: Callable[..., Any], theirs: Any) -> Callable[..., Any]:
    """A torch built with CUDA has its own function, which is kept for CUDA tensors."""

    @functools.wraps(function)
    def chosen(*args: Any) -> Any:
        if theirs is None or _get_available_device_type() == name():
            return function(*args)
        return theirs(*args)

    return chosen


def _is_elsewhere(module: torch.nn.Module) -> bool:
    """Whether PyTorch would choose our devices for a module whose first tensor is elsewhere."""
    if _get_available_device_type() != name():
        return False
    first = next(chain(module.parameters(), module.buffers()), None)
    return first is None or not is_ours(first)


def _checked_init(init: Any) -> Any:
    """Keeps a CPU model that is wrapped without `device_ids` on the CPU."""

    @functools.wraps(init)
    def checked(
        self: Any, module: Any, device_ids: Any = None, output_device: Any = None, dim: int = 0
    ) -> None:
        if device_ids is not None or not _is_elsewhere(module):
            init(self, module, device_ids, output_device, dim)
            return
        torch.nn.Module.__init__(self)
        self.module, self.device_ids = module, []
        self.output_device, self.dim = output_device, dim

    return checked


def _checked_forward(forward: Any) -> Any:
    @functools.wraps(forward)
    def checked(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # first: Dynamo cannot trace the rest
            return forward(self, *inputs, **kwargs)
        if not self.device_ids and not _is_elsewhere(self.module):
            _choose_devices(self)  # the model was moved after it was wrapped
        return forward(self, *inputs, **kwargs)

    return checked


def _choose_devices(parallel: Any) -> None:
    if _get_available_device_type() != name():
        return
    chosen = DataParallel(parallel.module, None, parallel.output_device, parallel.dim)
    for field in ("device_ids", "output_device", "src_device_obj"):
        setattr(parallel, field, getattr(chosen, field))


class _Autocasting:
    """A replica that runs under autocast."""

    def __init__(self, replica: torch.nn.Module) -> None:
        self._replica = replica

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        with torch.autocast(name()):
            return self._replica(*inputs, **kwargs)


def _keep_autocast() -> None:
    """Threads of replicas run under autocast if their caller does. PyTorch asks for CUDA's only."""
    apply = DataParallel.parallel_apply

    @functools.wraps(apply)
    def kept(self: Any, replicas: Any, inputs: Any, kwargs: Any) -> Any:
        if torch.is_autocast_enabled(name()):
            replicas = [_Autocasting(replica) for replica in replicas]
        return apply(self, replicas, inputs, kwargs)

    patch(DataParallel, "parallel_apply", kept)


def install() -> None:
    """Adds these functions to torch, or makes torch's own choose by device."""
    for function in (
        _broadcast,
        _broadcast_out,
        _broadcast_coalesced,
        _scatter,
        _scatter_out,
        _gather,
        _gather_out,
    ):
        wrap(torch._C, function.__name__, functools.partial(_by_device, function))
    # PyTorch sizes this list at the first scatter; a machine may be connected later.
    patch(_functions, "_streams", [None] * max_devices())
    wrap(DataParallel, "__init__", _checked_init)
    patch(DataParallel, "forward", _checked_forward(DataParallel.forward))
    _keep_autocast()
