"""`torch.cuda.*` on a remote machine: the device module `torch.remote` answers."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import Any

import torch

import torch_remote

from ._graphs import GraphAnswers
from ._table import ANSWERED, words
from ._target import Target, index_of, ranks_here, refusal

_DEVICES = {"device", "peer_device"}  # parameters
_TELEMETRY = words(
    """
    utilization memory_usage device_memory_used temperature power_draw clock_rate
    list_gpu_processes
    """
)

# What this class does itself.
_NOT_ADAPTED = words("device device_count Stream default_generators set_rng_state_all")


def _or_refused(function: Any, name: str) -> Any:
    """A figure of NVML. A server without NVML is a plain RuntimeError of torch_remote."""

    @functools.wraps(function)
    def call(device: Any = None) -> Any:
        try:
            return function(device)
        except RuntimeError as error:
            if type(error) is not RuntimeError:  # such as a lost session
                raise
            raise refusal(name, f"{error}; ask the system's own tools there") from error

    return call


def _taking_states_from_elsewhere(set_rng_state: Any) -> Any:
    @functools.wraps(set_rng_state)
    def call(new_state: torch.Tensor, device: Any = None) -> None:
        # Called from here, "cpu" is the CPU: a file of states may have been loaded elsewhere. Other
        # states are not touched, because reading their bytes waits for the server.
        is_here = new_state.device.type == "cpu"
        set_rng_state(new_state if is_here else new_state.to("cpu"), device)

    return call


def _device_class(module: Any, existing_index: Any) -> Any:
    class device(module.device):  # type: ignore[misc]
        """`with torch.cuda.device(i):`"""

        def __init__(self, device: Any) -> None:
            super().__init__(existing_index(device))

    return device


def _stream_class(module: Any, existing_index: Any) -> Any:
    class StreamType(type):
        """Every stream of the device is an instance of `Stream`, whichever class made it."""

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, module.Stream)

    class Stream(module.Stream, metaclass=StreamType):  # type: ignore[misc]
        """`torch.cuda.Stream(device=i)`: makes a stream of the device module."""

        def __new__(cls, device: Any = None, priority: int = 0, **known: Any) -> Any:
            made = module.Stream if cls is Stream else cls
            return module.Stream.__new__(made, existing_index(device), priority, **known)

    return Stream


class CUDAGraph(GraphAnswers, torch_remote.Graph):
    """`torch.cuda.CUDAGraph`: a `torch_remote.Graph`."""


class _Generators(Sequence[torch.Generator]):
    """`torch.cuda.default_generators`"""

    def __init__(self, target: RemoteTarget) -> None:
        self._target = target

    def __len__(self) -> int:
        return self._target.device_count()

    def __getitem__(self, index: Any) -> Any:
        chosen = range(len(self))[index]
        if isinstance(chosen, range):
            return tuple(self[each] for each in chosen)
        return self._target.default_generator(chosen)


class RemoteTarget(Target):
    """What the device module lacks is answered by the class."""

    CUDAGraph = CUDAGraph
    is_current_stream_capturing = staticmethod(torch_remote._C.is_recording)

    def __init__(self) -> None:
        self.kind = torch._C._get_privateuse1_backend_name()
        self._module = module = getattr(torch, self.kind)  # whatever the override says
        for name in ANSWERED:
            function = getattr(module, name, None)
            if function is not None and name not in _NOT_ADAPTED:
                setattr(self, name, self._adapted(name, function))
        self.device = _device_class(module, self.existing_index)
        self.Stream = _stream_class(module, self.existing_index)
        self.default_generators = _Generators(self)

    def _adapted(self, name: str, function: Any) -> Any:
        if name == "set_rng_state":
            function = _taking_states_from_elsewhere(function)
        by_index = self._by_index(function)
        if name == "device_memory_used":  # known without NVML too
            return functools.partial(self._device_memory_used, by_index)
        return _or_refused(by_index, name) if name in _TELEMETRY else by_index

    def _by_index(self, function: Any) -> Any:
        """The same with devices as torch.cuda's callers name them: "cuda:1", 1, torch.device."""
        if inspect.isclass(function) or not callable(function):
            return function
        names = list(inspect.signature(function).parameters)
        places = [place for place, name in enumerate(names) if name in _DEVICES]
        if not places:
            return function
        to_index = self.existing_index

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            indices = [to_index(each) if i in places else each for i, each in enumerate(args)]
            for name in _DEVICES & kwargs.keys():
                kwargs[name] = to_index(kwargs[name])
            return function(*indices, **kwargs)

        return call

    def existing_index(self, device: Any) -> int | None:
        """The rule for tensors (`redirect/policy.cpp`): an index that does not exist means 0."""
        index = index_of(device)
        if index is None or index <= 0:  # the first needs no count of the devices
            return index
        return index if index < self._module.device_count() else 0

    def default_generator(self, index: int) -> torch.Generator:
        made: torch.Generator = self._module.default_generators[self.existing_index(index)]
        return made

    def device_count(self) -> int:
        return max(int(self._module.device_count()), ranks_here())

    def set_rng_state_all(self, new_states: Any) -> None:
        """A file may have the states of more devices than there are here."""
        for index, state in zip(range(self._module.device_count()), new_states, strict=False):
            self.set_rng_state(state, index)

    def _device_memory_used(self, by_nvml: Any, device: Any = None) -> int:
        try:
            return int(by_nvml(device))
        except RuntimeError as error:
            if type(error) is not RuntimeError:  # such as another call's failure
                raise
            return Target.device_memory_used(self, device)

    def snapshot_function(self, name: str) -> Any:
        return self._by_index(getattr(self._module.memory, name))
