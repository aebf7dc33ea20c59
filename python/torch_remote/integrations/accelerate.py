"""accelerate: `Accelerator()`, `accelerate launch`, big models, mixed precision, checkpoints.

`ACCELERATE_TORCH_DEVICE=remote`, accelerate's own setting, works without changes, except where
accelerate asks for the kind of device again. Line numbers are those of accelerate 1.15.0.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

import torch

from .. import _device
from .._backend import name
from .._patches import patch
from .choice import (
    add_name,
    change_modules,
    instead_of_cpu,
    is_chosen,
    is_redirected,
    replace,
    use_our_cuda,
)

# Of `supported_device` in accelerator.py:571.
_FP16_DEVICES = ("xpu", "cuda", "npu", "xla", "mlu", "musa", "hpu", "sdaa", "mps")


def _change_state(module: Any) -> None:
    # state.py:718, PartialState.default_device: a fixed list of kinds, then the CPU.
    find = module.PartialState.default_device.fget
    patch(module.PartialState, "default_device", property(lambda self: instead_of_cpu(find(self))))
    # state.py:755, _prepare_backend: a rank that finds none of a fixed list of kinds trains alone.
    prepare = _making_a_group(module.PartialState._prepare_backend)
    patch(module.PartialState, "_prepare_backend", prepare)
    # state.py:819, set_device: MULTI_GPU is `torch.cuda`.
    patch(module.PartialState, "set_device", _setting_device(module.PartialState.set_device))


def _making_a_group(prepare: Any) -> Any:
    @functools.wraps(prepare)
    def prepare_backend(
        self: Any, cpu: bool = False, sagemaker_dp: bool = False, backend: str | None = None
    ) -> Any:
        chosen, kind = prepare(self, cpu, sagemaker_dp, backend)
        is_rank = int(os.environ.get("LOCAL_RANK", -1)) != -1
        if kind.name == "NO" and is_rank and not cpu and is_chosen():
            return backend or name(), type(kind).MULTI_GPU
        return chosen, kind

    return prepare_backend


def _setting_device(set_device: Any) -> Any:
    @functools.wraps(set_device)
    def set_ours(self: Any) -> None:
        if self.device is None and self.distributed_type.name == "MULTI_GPU" and is_chosen():
            # Alone with its server, a rank has device 0, whatever its number.
            index = self.local_process_index % _device.device_count()
            self.device = torch.device(name(), index)
            _device.set_device(index)
            return
        set_device(self)

    return set_ours


def _change_accelerator(module: Any) -> None:
    # accelerator.py:571, Accelerator.__init__: fp16 is refused for a device not in this tuple.
    add_name(module.Accelerator.__init__, _FP16_DEVICES)


def _scaling(get_grad_scaler: Any) -> Any:
    @functools.wraps(get_grad_scaler)
    def get(distributed_type: Any = None, **options: Any) -> Any:
        is_plain = distributed_type is None or distributed_type.name in ("NO", "MULTI_GPU")
        if is_plain and is_chosen():
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


def _starting_all(validate: Any) -> Any:
    @functools.wraps(validate)
    def validated(args: Any) -> Any:
        args, defaults, is_from_file = validate(args)
        if defaults is None and args.num_processes > 1 and is_redirected():
            args.multi_gpu = True  # as where there are several GPUs: each rank has its server
        return args, defaults, is_from_file

    return validated


def _change_launcher(module: Any) -> None:
    # commands/launch.py:1328, _validate_launch_command: `and torch.cuda.device_count() > 1`.
    patch(module, "_validate_launch_command", _starting_all(module._validate_launch_command))


def _warning_of_one(prepare: Any) -> Any:
    @functools.wraps(prepare)
    def prepared(args: Any) -> Any:
        if (args.num_processes or 1) > 1 and not args.cpu and is_redirected():
            print(
                f"torch_remote: accelerate starts one process, not {args.num_processes}: "
                "give `accelerate launch` the option --multi_gpu",
                file=sys.stderr,
            )
        return prepare(args)

    return prepared


def _change_launches(module: Any) -> None:
    # utils/launch.py:100: for `python -m accelerate.commands.launch`, which is not imported.
    prepare = _warning_of_one(module.prepare_simple_launcher_cmd_env)
    patch(module, "prepare_simple_launcher_cmd_env", prepare)


def install() -> None:
    change_modules(
        {
            "accelerate.commands.launch": _change_launcher,
            "accelerate.utils.launch": _change_launches,
            "accelerate.state": _change_state,
            "accelerate.accelerator": _change_accelerator,
            "accelerate.utils.modeling": _change_modeling,
            # utils/memory.py:60, clear_device_cache: `torch.cuda.empty_cache()`.
            "accelerate.utils.memory": _ask_our_cuda,
            # checkpointing.py:174 and :313: states of `torch.cuda`'s random generators.
            "accelerate.checkpointing": _ask_our_cuda,
        }
    )
