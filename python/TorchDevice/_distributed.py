"""NCCL needs CUDA. On remote devices their own backend does its work, elsewhere Gloo."""

from __future__ import annotations

import functools
from typing import Any

import torch

from torch_remote_patches import Patches

from . import _C
from ._log import warn_once


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
            args = (None, None, *args[2:]) if args else args
            kwargs = {**kwargs, **{key: None for key in kwargs if key in _INDICES}}
        init(self, module, *args, **kwargs)

    return redirected


_INDICES = ("device_ids", "output_device")


def install(changes: Patches) -> None:
    if not torch.distributed.is_available():
        return
    from torch.distributed import distributed_c10d

    for name, wrapped in (("init_process_group", _init), ("new_group", _group)):
        function = wrapped(getattr(distributed_c10d, name))
        for module in (distributed_c10d, torch.distributed):
            changes.patch(module, name, function)
    parallel = torch.nn.parallel.DistributedDataParallel
    changes.patch(parallel, "__init__", _parallel(parallel.__init__))
