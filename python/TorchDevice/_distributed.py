"""NCCL needs CUDA. On remote devices their own backend does its work, elsewhere Gloo."""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch

from torch_remote_patches import Patches

from . import _C
from ._callers import truth_for_listed
from ._log import warn_once
from ._target import Target


def _is_nccl(backend: Any) -> bool:
    return isinstance(backend, str) and "nccl" in backend.lower()


def _instead(name: str, backend: str) -> str:
    """The backend for "nccl" or "cpu:gloo,cuda:nccl"."""
    if _C.accelerator() == "remote":
        engine = device = torch._C._get_privateuse1_backend_name()
    else:
        engine, device = "gloo", "cuda"
    warn_once(name, f"has no NCCL here and uses the backend {engine}")
    return backend.lower().replace("nccl", engine).replace("cuda:", f"{device}:")


def _init(original: Any) -> Any:
    @functools.wraps(original)
    def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        if _is_nccl(backend):
            backend = _instead("init_process_group", backend)
            kwargs.pop("device_id", None)  # binds NCCL to a GPU; the others take none
        return original(backend, *args, **kwargs)

    return init_process_group


def _group(original: Any) -> Any:
    @functools.wraps(original)
    def new_group(
        ranks: Any = None, timeout: Any = None, backend: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        if _is_nccl(backend):
            backend = _instead("new_group", backend)
        return original(ranks, timeout, backend, *args, **kwargs)

    return new_group


def _parallel(init: Any) -> Any:
    """`DistributedDataParallel(model, device_ids=[0])`: a module of the CPU has no index."""

    @functools.wraps(init)
    def redirected(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        if all(each.device.type == "cpu" for each in module.parameters()):
            args = (*(None for _ in args[: len(_INDICES)]), *args[len(_INDICES) :])
            kwargs = {**kwargs, **{key: None for key in kwargs if key in _INDICES}}
        init(self, module, *args, **kwargs)

    return redirected


_INDICES = ("device_ids", "output_device")


def _data_parallel(target: Target, init: Any) -> Any:
    """`DataParallel(model, device_ids=[0, 1])`: those that exist, each once."""

    @functools.wraps(init)
    def redirected(
        self: Any, module: Any, device_ids: Any = None, output_device: Any = None, dim: int = 0
    ) -> None:
        if target.kind == "cpu":
            device_ids = output_device = None
        if device_ids is not None:
            device_ids = list(dict.fromkeys(map(target.existing_index, device_ids)))
        if output_device is not None:
            output_device = target.existing_index(output_device)
        init(self, module, device_ids, output_device, dim)

    return redirected


def _parallel_function(target: Target, data_parallel: Any) -> Any:
    """`data_parallel(model, x, [0, 1])`, as `DataParallel` does it."""

    @functools.wraps(data_parallel)
    def redirected(
        module: Any,
        inputs: Any,
        device_ids: Any = None,
        output_device: Any = None,
        dim: int = 0,
        module_kwargs: Any = None,
    ) -> Any:
        if target.kind == "cpu":
            given = inputs if isinstance(inputs, tuple) else () if inputs is None else (inputs,)
            return module(*given, **(module_kwargs or {}))
        if device_ids is not None:
            device_ids = list(dict.fromkeys(map(target.existing_index, device_ids)))
        return data_parallel(module, inputs, device_ids, output_device, dim, module_kwargs)

    return redirected


def install(changes: Patches, target: Target) -> None:
    parallel = _parallel_function(target, torch.nn.parallel.data_parallel)
    # torch.nn.parallel has a module of the same name.
    for owner in (torch.nn.parallel, sys.modules["torch.nn.parallel.data_parallel"]):
        changes.patch(owner, "data_parallel", parallel)
    make_init = functools.partial(_data_parallel, target)
    changes.wrap(torch.nn.DataParallel, "__init__", make_init)
    if not torch.distributed.is_available():
        return
    from torch.distributed import distributed_c10d

    # Programs ask before they name it: nccl is redirected.
    is_nccl = truth_for_listed(lambda: True, distributed_c10d.is_nccl_available)
    for name, function in (
        ("init_process_group", _init(distributed_c10d.init_process_group)),
        ("new_group", _group(distributed_c10d.new_group)),
        ("is_nccl_available", is_nccl),
    ):
        for module in (distributed_c10d, torch.distributed):
            changes.patch(module, name, function)
    changes.wrap(torch.nn.parallel.DistributedDataParallel, "__init__", _parallel)
