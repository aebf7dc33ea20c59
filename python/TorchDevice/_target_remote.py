"""`torch.cuda.*` on a remote machine: the device module `torch.remote` answers."""

from __future__ import annotations

import functools
from typing import Any

import torch

from ._table import ANSWERED, words
from ._target import Target, index_of, refusal

_WITH_DEVICE = words(
    """
    set_device synchronize get_device_name get_device_capability get_device_properties
    memory_allocated max_memory_allocated memory_reserved max_memory_reserved memory_cached
    max_memory_cached memory_stats memory_stats_as_nested_dict mem_get_info
    reset_peak_memory_stats reset_accumulated_memory_stats reset_max_memory_allocated
    reset_max_memory_cached get_rng_state current_stream default_stream
    get_per_process_memory_fraction
    """
)
_TELEMETRY = words(
    """
    utilization memory_usage device_memory_used temperature power_draw clock_rate
    list_gpu_processes
    """
)

# What this class does itself: the device is not the first argument, or states may be elsewhere.
_NOT_ADAPTED = words(
    """
    device set_rng_state set_rng_state_all set_per_process_memory_fraction
    """
)


def _or_refused(function: Any, name: str) -> Any:
    """A figure of NVML. A server without NVML is a plain RuntimeError of torch_remote."""

    @functools.wraps(function)
    def call(device: Any = None) -> Any:
        try:
            return function(index_of(device))
        except RuntimeError as error:
            if type(error) is not RuntimeError:  # such as a lost session
                raise
            raise refusal(name, f"{error}; ask the system's own tools there") from error

    return call


class RemoteTarget(Target):
    """What the device module lacks is answered by the class."""

    def __init__(self) -> None:
        self.kind = torch._C._get_privateuse1_backend_name()
        self._module = module = getattr(torch, self.kind)  # whatever the override says
        for name in ANSWERED:
            function = getattr(module, name, None)
            if function is not None and name not in _NOT_ADAPTED:
                setattr(self, name, self._adapted(name, function))

        existing_index = self._existing_index

        class device(module.device):  # type: ignore[misc, name-defined]
            """`with torch.cuda.device(i):`"""

            def __init__(self, device: Any) -> None:
                super().__init__(existing_index(device))

        self.device = device

    def _adapted(self, name: str, function: Any) -> Any:
        if name == "device_memory_used":  # known without NVML too
            return functools.partial(self._device_memory_used, self._by_index(function))
        if name in _TELEMETRY:
            return _or_refused(function, name)
        return self._by_index(function) if name in _WITH_DEVICE else function

    def _by_index(self, function: Any) -> Any:
        """The same with the device as torch.cuda's callers name it: "cuda:1", 1, torch.device."""

        @functools.wraps(function)
        def call(device: Any = None) -> Any:
            return function(self._existing_index(device))

        return call

    def _existing_index(self, device: Any) -> int | None:
        self._check_index(device)
        return index_of(device)

    def _device_memory_used(self, by_nvml: Any, device: Any = None) -> int:
        try:
            return int(by_nvml(device))
        except RuntimeError as error:
            if type(error) is not RuntimeError:  # such as another call's failure
                raise
            return Target.device_memory_used(self, device)

    def snapshot_function(self, name: str) -> Any:
        return getattr(self._module.memory, name)

    def set_per_process_memory_fraction(self, fraction: float, device: Any = None) -> None:
        self._module.set_per_process_memory_fraction(fraction, self._existing_index(device))

    def set_rng_state(self, new_state: torch.Tensor, device: Any = None) -> None:
        # Called from here, "cpu" is the CPU: a file of states may have been loaded elsewhere.
        self._module.set_rng_state(new_state.to("cpu"), index_of(device))
