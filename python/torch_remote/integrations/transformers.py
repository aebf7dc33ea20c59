"""transformers: `Trainer`, `pipeline()`, `device_map="auto"`.

`device_map="remote"` works without changes, and "auto" by what is changed in accelerate. Line
numbers are those of transformers 5.22.2.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch

from .. import _device
from .._backend import name
from .._patches import patch
from .choice import change_modules, is_chosen, our_torch, replace, use_our_cuda


def _change_training_args(module: Any) -> None:
    # training_args.py:1909, _setup_devices: "cuda:0", or ACCELERATE_TORCH_DEVICE, or the CPU.
    # A cached_property, which keeps what it has computed in the instance.
    find = module.TrainingArguments._setup_devices.func

    @functools.wraps(find)
    def setup_devices(self: Any) -> torch.device:
        found: torch.device = find(self)
        state = self.distributed_state  # None: sagemaker
        if found.type != "cpu" or self.use_cpu or state is None or state.device.type != name():
            return found
        self._n_gpu = 1  # as for the other kinds of devices: no DataParallel
        return torch.device(name(), state.device.index or 0)

    changed = functools.cached_property(setup_devices)
    changed.__set_name__(module.TrainingArguments, "_setup_devices")
    patch(module.TrainingArguments, "_setup_devices", changed)


def _knowing_bf16(is_available: Any) -> Any:
    @functools.wraps(is_available)
    def available() -> bool:
        return bool(_device.is_bf16_supported() if is_chosen() else is_available())

    return available


def _knowing_tf32(is_available: Any) -> Any:
    @functools.wraps(is_available)
    def available() -> bool:
        return bool(_device.get_device_capability()[0] >= 8 if is_chosen() else is_available())

    return available


def _change_import_utils(module: Any) -> None:
    # utils/import_utils.py:636, is_torch_bf16_gpu_available: False for a device it does not know;
    # training_args.py:1742 then refuses bf16=True.
    replace(module, "is_torch_bf16_gpu_available", _knowing_bf16)
    # utils/import_utils.py:727, is_torch_tf32_available: False without a local CUDA device;
    # training_args.py:1646 then refuses tf32=True.
    replace(module, "is_torch_tf32_available", _knowing_tf32)


def _measuring(init: Any) -> Any:
    @functools.wraps(init)
    def initialize(self: Any, skip_memory_metrics: bool = False) -> None:
        init(self, skip_memory_metrics)
        if not self.skip_memory_metrics and self.torch is None and is_chosen():
            self.torch, self.gpu = our_torch, {}

    return initialize


def _change_trainer_utils(module: Any) -> None:
    # trainer_utils.py:637, TrainerMemoryTracker.__init__: a fixed list of kinds, then none; the
    # other methods ask `torch.cuda` first.
    use_our_cuda(module)
    tracker = module.TrainerMemoryTracker
    patch(tracker, "__init__", _measuring(tracker.__init__))


def _placing(init: Any) -> Any:
    """Pipeline.__init__, which gives an index, also the default 0, to our device."""
    signature = inspect.signature(init)

    @functools.wraps(init)
    def initialize(self: Any, *args: Any, **kwargs: Any) -> None:
        call = signature.bind(self, *args, **kwargs)
        device = call.arguments.get("device")
        places = getattr(call.arguments.get("model"), "hf_device_map", None)
        if is_chosen() and places is None and _is_index(0 if device is None else device):
            call.arguments["device"] = torch.device(name(), device or 0)
        init(*call.args, **call.kwargs)
        first = next(iter(places.values()), None) if places else None
        if is_chosen() and device is None and _is_index(first):
            self.device = torch.device(name(), first)

    return initialize


def _is_index(device: Any) -> bool:
    return isinstance(device, int) and device >= 0


def _change_pipelines(module: Any) -> None:
    # pipelines/base.py:854, Pipeline.__init__: a fixed list of kinds of devices, then the CPU.
    patch(module.Pipeline, "__init__", _placing(module.Pipeline.__init__))


def install() -> None:
    change_modules(
        {
            "transformers.training_args": _change_training_args,
            "transformers.utils.import_utils": _change_import_utils,
            "transformers.pipelines.base": _change_pipelines,
            "transformers.trainer_utils": _change_trainer_utils,
            # cache_utils.py:1529, Cache.update: `torch.cuda.default_stream()`, if it is offloaded.
            "transformers.cache_utils": use_our_cuda,
            # trainer.py:3433 and :3834: states of `torch.cuda`'s random generators in checkpoints;
            # :3000, torch.cuda.empty_cache().
            "transformers.trainer": use_our_cuda,
            # integrations/accelerate.py:219, get_max_memory: adds what is reserved and not used.
            "transformers.integrations.accelerate": use_our_cuda,
        }
    )
