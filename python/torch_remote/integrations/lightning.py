"""Lightning: `Trainer(accelerator="remote")` and `Fabric`, "auto" and "gpu".

The accelerator is added through Lightning's own registry. Lightning comes under two names, and so
does each of its halves. Line numbers are those of lightning 2.6.6.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from .. import _device
from .._backend import existing_index, name
from .._patches import patch, patch_item
from .choice import change_modules, is_chosen, is_redirected, use_our_cuda

_REDIRECTED = ("cuda", "mps")  # accelerators that TorchDevice redirects


def _accelerator_class(base: Any) -> Any:
    """The class for the registry. Its base is the Accelerator of one half of Lightning."""

    def parse_devices(devices: Any) -> list[int]:
        if isinstance(devices, int | str) and str(devices) in ("auto", "-1"):
            return list(range(_device.device_count() if str(devices) == "-1" else 1))
        if isinstance(devices, str) and "," in devices:
            return [int(each) for each in devices.split(",") if each.strip()]
        return [int(each) for each in devices] if _is_list(devices) else list(range(int(devices)))

    def parse_one_device(devices: Any) -> list[int]:
        indices = parse_devices(devices)
        if len(indices) > 1:
            raise ValueError(
                f"devices={devices!r}: one process uses one {name()} device; name it: devices=[0]"
            )
        return [existing_index(torch.device(name(), index)) for index in indices]

    def get_device_stats(self: Any, device: Any) -> dict[str, Any]:
        return _device.memory_stats(device)

    methods = {
        "setup_device": lambda self, device: _device.set_device(device),
        "teardown": lambda self: _device.empty_cache(),
        "parse_devices": staticmethod(parse_one_device),
        "get_parallel_devices": staticmethod(
            lambda devices: [torch.device(name(), index) for index in devices]
        ),
        "auto_device_count": staticmethod(lambda: 1),
        "is_available": staticmethod(_device.is_available),
        "name": staticmethod(name),
        "get_device_stats": get_device_stats,
    }
    return type("RemoteAccelerator", (base,), {**methods, "__doc__": "A device of torch_remote."})


def _is_list(devices: Any) -> bool:
    return isinstance(devices, list | tuple)


def _add_accelerator(module: Any) -> None:
    registry = getattr(module, "AcceleratorRegistry", None) or module.ACCELERATOR_REGISTRY
    made = _accelerator_class(module.Accelerator)
    entry = {"description": made.__doc__, "init_params": {}, "accelerator": made,
             "accelerator_name": name()}  # fmt: skip
    patch_item(registry, name(), entry)


def _choosing(select: Any) -> Any:
    @functools.wraps(select)
    def choose() -> str:
        found = str(select())
        is_ours = is_redirected() if found in _REDIRECTED else found == "cpu" and is_chosen()
        return name() if is_ours else found

    return choose


def _choosing_gpu(select: Any) -> Any:
    @functools.wraps(select)
    def choose() -> str:
        if is_redirected():
            return name()
        try:
            return str(select())
        except Exception:  # each half of Lightning has its own class for "there is none"
            if is_chosen():
                return name()
            raise

    return choose


def _redirecting(set_flags: Any) -> Any:
    @functools.wraps(set_flags)
    def set_redirected(self: Any, *args: Any, **kwargs: Any) -> None:
        set_flags(self, *args, **kwargs)
        if not is_redirected():
            return  # nothing is asked of an accelerator of the program's own
        wanted = self._accelerator_flag
        kind = wanted if isinstance(wanted, str) else wanted.name()
        if kind in _REDIRECTED:
            self._accelerator_flag = name()

    return set_redirected


def _strategy_on_our_device(choose: Any) -> Any:
    @functools.wraps(choose)
    def choose_strategy(self: Any) -> Any:
        strategy = choose(self)
        devices = self._parallel_devices
        is_ours = len(devices) == 1 and getattr(devices[0], "type", None) == name()
        if is_ours and hasattr(strategy, "_root_device"):  # a SingleDeviceStrategy
            strategy._root_device = devices[0]
        return strategy

    return choose_strategy


def _autocasting(init: Any) -> Any:
    @functools.wraps(init)
    def initialize(self: Any, precision: Any, device: str, scaler: Any = None) -> None:
        init(self, precision, name() if device == "cuda" and is_chosen() else device, scaler)

    return initialize


def _change_connector(connector: str) -> Any:
    def change(module: Any) -> None:
        owner = getattr(module, connector)
        # fabric/connector.py:318 and accelerator_connector.py:331: a fixed list, then the CPU.
        select = _choosing(owner._choose_auto_accelerator)
        patch(owner, "_choose_auto_accelerator", staticmethod(select))
        # fabric/connector.py:327 and accelerator_connector.py:337: MPS, CUDA, or an error.
        select = _choosing_gpu(owner._choose_gpu_accelerator_backend)
        patch(owner, "_choose_gpu_accelerator_backend", staticmethod(select))
        # fabric/accelerators/cuda.py:35 and mps.py:40, setup_device: the device's type is compared
        # with the accelerator's name.
        flags = "_check_config_and_set_final_flags"
        patch(owner, flags, _redirecting(getattr(owner, flags)))
        # fabric/connector.py:394 and accelerator_connector.py:400, _choose_strategy: for an
        # accelerator that it does not know, `device = "cpu"`.
        patch(owner, "_choose_strategy", _strategy_on_our_device(owner._choose_strategy))

    return change


def _change_precision(module: Any) -> None:
    # fabric/connector.py:495 and accelerator_connector.py:489: "cuda" for what is not cpu or mps.
    patch(module.MixedPrecision, "__init__", _autocasting(module.MixedPrecision.__init__))


def _recording_our_device(default_activities: Any) -> Any:
    @functools.wraps(default_activities)
    def activities(self: Any) -> list[Any]:
        ours = [torch.profiler.ProfilerActivity.PrivateUse1] if is_chosen() else []
        return [*default_activities(self), *ours]

    return activities


def _change_profiler(module: Any) -> None:
    # profilers/pytorch.py:411, PyTorchProfiler._default_activities: CUDA's, or the process alone.
    owner = module.PyTorchProfiler
    patch(owner, "_default_activities", _recording_our_device(owner._default_activities))


def install() -> None:
    halves = (("lightning.fabric", "lightning.pytorch"), ("lightning_fabric", "pytorch_lightning"))
    for fabric, pytorch in halves:
        change_modules(
            {
                f"{fabric}.accelerators": _add_accelerator,
                f"{pytorch}.accelerators": _add_accelerator,
                f"{fabric}.connector": _change_connector("_Connector"),
                f"{pytorch}.trainer.connectors.accelerator_connector": _change_connector(
                    "_AcceleratorConnector"
                ),
                f"{pytorch}.profilers.pytorch": _change_profiler,
                f"{fabric}.plugins.precision.amp": _change_precision,
                f"{pytorch}.plugins.precision.amp": _change_precision,
                # fabric/utilities/seed.py:146 and :156: states of `torch.cuda`'s generators.
                f"{fabric}.utilities.seed": use_our_cuda,
            }
        )
