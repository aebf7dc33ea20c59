"""accelerate: `Accelerator()`, big models, mixed precision, checkpoints.

`ACCELERATE_TORCH_DEVICE=remote`, accelerate's own setting, works without changes, except where
accelerate asks for the kind of device again. Line numbers are those of accelerate 1.15.0.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from .._backend import name
from .._patches import patch
from .choice import add_name, change_modules, instead_of_cpu, is_chosen, replace, use_our_cuda

# Of `supported_device` in accelerator.py:571.
_FP16_DEVICES = ("xpu", "cuda", "npu", "xla", "mlu", "musa", "hpu", "sdaa", "mps")


def _change_state(module: Any) -> None:
    # state.py:718, PartialState.default_device: a fixed list of kinds, then the CPU.
    find = module.PartialState.default_device.fget
    patch(module.PartialState, "default_device", property(lambda self: instead_of_cpu(find(self))))


def _change_accelerator(module: Any) -> None:
    # accelerator.py:571, Accelerator.__init__: fp16 is refused for a device not in this tuple.
    add_name(module.Accelerator.__init__, _FP16_DEVICES)


def _scaling(get_grad_scaler: Any) -> Any:
    @functools.wraps(get_grad_scaler)
    def get(distributed_type: Any = None, **options: Any) -> Any:
        is_alone = distributed_type is None or distributed_type.name == "NO"
        if is_alone and is_chosen():
            return torch.amp.GradScaler(name(), **options)
        return get_grad_scaler(distributed_type, **options)

    return get


def _change_modeling(module: Any) -> None:
    # utils/modeling.py:757, get_max_memory: `else: torch.cuda.device_count()`, mem_get_info().
    use_our_cuda(module)
    # utils/modeling.py:2157, get_grad_scaler: `else: GradScaler("cuda")`.
    replace(module, "get_grad_scaler", _scaling)


def _ask_our_cuda(module: Any) -> None:
    is_cuda_available = module.is_cuda_available
    patch(module, "is_cuda_available", lambda: is_chosen() or is_cuda_available())
    use_our_cuda(module)


def install() -> None:
    change_modules(
        {
            "accelerate.state": _change_state,
            "accelerate.accelerator": _change_accelerator,
            "accelerate.utils.modeling": _change_modeling,
            # utils/memory.py:60, clear_device_cache: `torch.cuda.empty_cache()`.
            "accelerate.utils.memory": _ask_our_cuda,
            # checkpointing.py:174 and :313: states of `torch.cuda`'s random generators.
            "accelerate.checkpointing": _ask_our_cuda,
        }
    )
