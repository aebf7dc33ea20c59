"""Devices of machines that are launched at first use: `create_modal_device("A100-40GB")`.

A `BackendDevice` is a string, `remote:<k>`, so PyTorch takes it wherever it takes a device. Making
one reserves the index `k`; the first tensor on it launches the machine (`_launch.start`).
"""

from __future__ import annotations

import secrets
import weakref
from enum import Enum
from typing import Any

import torch

from . import _C, _errors, _launch, providers
from ._backend import default_devices, name
from ._gpus import GPUType, choose_gpu, larger_type


class BackendProvider(Enum):
    """Where a machine is launched. Other packages' providers are named by a string."""

    MODAL = "modal"
    KUBERNETES = "k8s"
    RAY = "ray"
    RUNPOD = "runpod"
    SKYPILOT = "sky"
    SLURM = "slurm"
    SSH = "ssh"
    LOCAL = "local"  # an embedded server of its own


class BackendDevice(str):
    """A device of a machine, by its string. Equality and hash are by `device_id`."""

    provider: BackendProvider | str
    gpu_type: GPUType | None
    device_id: str
    config: dict[str, Any]
    index: int  # type: ignore[assignment]  # str.index is hidden
    _spec: providers.Spec

    def __new__(
        cls,
        provider: BackendProvider | str,
        gpu_type: GPUType | str | None = None,
        device_id: str | None = None,
        **config: Any,
    ) -> BackendDevice:
        kind = _provider_of(provider)
        gpu = None if gpu_type is None else GPUType.parse(gpu_type)
        spec = _spec_of(kind, gpu, config)
        index = _registry.reserve(spec)
        made = super().__new__(cls, f"{name()}:{index}")
        made.provider, made.gpu_type, made.config = kind, gpu, config
        made.index, made._spec = index, spec
        made.device_id = device_id or _new_id(kind, gpu)
        _registry.register_device(made)
        return made

    @property
    def device_name(self) -> str:
        """Such as `Modal A100-40GB`."""
        provider = _text_of(self.provider)
        shown = "SSH" if provider == "ssh" else provider.title()
        return f"{shown} {self.gpu_type.value}" if self.gpu_type else shown

    @property
    def modal_gpu_spec(self) -> str:
        """What Modal calls the GPU."""
        if self.gpu_type is None:
            raise ValueError(f"{self!r} was made without a GPU type")
        return self.gpu_type.value

    def device(self) -> torch.device:
        """As a `torch.device`."""
        return torch.device(name(), self.index)

    def to_torch_device(self, index: int | None = None) -> torch.device:
        """As a `torch.device`, or the device with another index."""
        return torch.device(name(), self.index if index is None else index)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, BackendDevice):
            return self.device_id == other.device_id
        if isinstance(other, torch.device):  # for `x.device == device`
            return bool(self.device() == other)
        return False

    def __ne__(self, other: object) -> bool:  # str has its own
        return not self == other

    def __hash__(self) -> int:
        return hash(self.device_id)

    def __repr__(self) -> str:
        gpu = self.gpu_type.value if self.gpu_type else None
        provider = _text_of(self.provider)
        return f"BackendDevice(provider={provider}, gpu={gpu}, id={self.device_id})"

    def __copy__(self) -> BackendDevice:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> BackendDevice:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.provider, self.gpu_type, self.device_id, self.config)


def _restore(
    provider: BackendProvider | str, gpu: GPUType | None, device_id: str, config: dict[str, Any]
) -> BackendDevice:
    """From a pickle: the same device in its own process, one that is launched anew in another."""
    known = _registry.get_device_by_id(device_id)
    return known or BackendDevice(provider, gpu, device_id, **config)


class DeviceRegistry:
    """The `BackendDevice`s of this process, by index and by id. It does not keep them alive.

    The index of a device that the program has dropped stays reserved, since a `torch.device` may
    still name it, until indices run short.
    """

    def __init__(self) -> None:
        self._devices: weakref.WeakValueDictionary[int, BackendDevice] = (
            weakref.WeakValueDictionary()
        )

    def reserve(self, spec: providers.Spec) -> int:
        """An index that no machine has, for what `spec` says."""
        begin = default_devices()  # the default machine, if it comes later, has the first ones
        try:
            index = _C.reserve(begin)
        except RuntimeError:
            if not self._drop_unused():
                raise
            index = _C.reserve(begin)
        _launch.reserved[index] = spec
        return index

    def register_device(self, device: BackendDevice) -> int:
        """Its index. A device is registered when it is made."""
        if _launch.reserved.get(device.index) is not device._spec:
            raise RuntimeError(f"{device!r} was cleared: make a new one with create_device()")
        self._devices[device.index] = device
        return device.index

    def get_device_by_index(self, index: int) -> BackendDevice | None:
        return self._devices.get(index)

    def get_device_by_id(self, device_id: str) -> BackendDevice | None:
        return next((each for each in self._devices.values() if each.device_id == device_id), None)

    def get_device_index(self, device: BackendDevice) -> int | None:
        known = self.get_device_by_id(device.device_id)
        return None if known is None else known.index

    def devices_compatible(self, a: BackendDevice, b: BackendDevice) -> bool:
        """Whether tensors of the two can be used in one operator: if they are one device."""
        return a == b

    def clear(self) -> None:
        """Forgets all devices. Their indices are free again; machines that run go on."""
        for index in list(_launch.reserved):
            self._forget(index)

    def __len__(self) -> int:
        return len(self._devices)

    def __repr__(self) -> str:
        return f"DeviceRegistry({dict(sorted(self._devices.items()))})"

    def _drop_unused(self) -> bool:
        """Frees the indices of devices that the program has dropped without using them."""
        unused = [
            index
            for index in _launch.reserved
            if index not in self._devices and not _C.has_device(index)
        ]
        for index in unused:
            self._forget(index)
        return bool(unused)

    def _forget(self, index: int) -> None:
        self._devices.pop(index, None)
        _launch.reserved.pop(index, None)
        _C.unreserve(index)


_registry = DeviceRegistry()


def get_device_registry() -> DeviceRegistry:
    """The registry of this process."""
    return _registry


def create_modal_device(gpu: str | GPUType, **config: Any) -> BackendDevice:
    """A device on a machine of Modal with this GPU, which is launched when it is first used.

    `"auto"` chooses the cheapest GPU for `need=`, as `choose_gpu(need)` does.
    """
    return create_device(BackendProvider.MODAL, gpu, **config)


def create_device(
    provider: BackendProvider | str, gpu: str | GPUType | None = None, **config: Any
) -> BackendDevice:
    """A device on a machine of any provider, which is launched when it is first used.

    `config` is given to the provider; `host=` names a machine of `ssh`. `gpu` may be missing where
    the provider does not choose one.
    """
    if gpu == "auto":
        if "need" not in config:
            raise ValueError(
                f'"auto" of {_text_of(provider)} needs need=, which is what choose_gpu() takes: a '
                'module, a number of parameters or bytes as text, such as need="30GiB"'
            )
        gpu = choose_gpu(config.pop("need")).gpu
    if gpu is None and _provider_of(provider) is BackendProvider.MODAL:
        raise ValueError("a machine of Modal needs a GPU type, or 'auto'")
    return BackendDevice(provider, gpu, **config)


def _provider_of(provider: BackendProvider | str) -> BackendProvider | str:
    if isinstance(provider, BackendProvider):
        return provider
    known = {each.value: each for each in BackendProvider}
    if provider not in known and provider not in providers.provider_names():
        names = sorted({*known, *providers.provider_names()})
        raise ValueError(f"Invalid provider '{provider}'. Valid providers: {names}")
    return known.get(provider, provider)


def _text_of(provider: BackendProvider | str) -> str:
    return provider.value if isinstance(provider, BackendProvider) else provider


def _spec_of(
    provider: BackendProvider | str, gpu: GPUType | None, config: dict[str, Any]
) -> providers.Spec:
    options = {key: str(value) for key, value in config.items()}
    host = options.pop("host", "")
    scheme = _text_of(provider)
    url = f"{scheme}://{host or (gpu.value if gpu else '')}"
    return providers.Spec(scheme, url, host, gpu, options)


def _new_id(provider: BackendProvider | str, gpu: GPUType | None) -> str:
    parts = [_text_of(provider)]
    if gpu is not None:
        parts.append(gpu.value.replace("-", "").lower())
    return "-".join([*parts, secrets.token_hex(4)])


def _hint_for_memory(device: int) -> str:
    """For an error that says that a device has too little memory: the next larger type."""
    spec = _launch.reserved.get(device)
    larger = larger_type(spec.gpu) if spec is not None and spec.gpu is not None else None
    return "" if larger is None else f"; the next larger type is {larger.value}"


_errors.hint_for_memory = _hint_for_memory
