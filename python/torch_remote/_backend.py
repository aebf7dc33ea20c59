"""The name of the backend, and what is known about its devices without a connection.

PyTorch lets a process choose the name once (`torch_remote` chooses `remote`): it is no constant.
"""

from __future__ import annotations

from typing import TypeAlias

import torch

from . import _C, _config, _launch

# The names that there are, and the package that chooses each.
PACKAGES = {"remote": "torch_remote", "modal": "torch_modal"}

DeviceLike: TypeAlias = "torch.device | str | int | None"


def name() -> str:
    """The name of the backend in device strings."""
    return str(torch._C._get_privateuse1_backend_name())


def is_ours(tensor: torch.Tensor) -> bool:
    """Whether the tensor is on one of our devices."""
    return bool(tensor.device.type == name())


def max_devices() -> int:
    """How many device indices there are; most of them have no device yet."""
    return 16  # kMaxDevices in client/machines/machines.h


def configured_url() -> str | None:
    """The URL or name of the default machine; None for the embedded server."""
    url = _config.choose_default()
    return None if url == "local" else url


def local_gpus() -> int:
    """The number of GPUs of this machine. NVML tells, without initialising CUDA."""
    if torch.version.cuda is None:
        return 0
    return max(0, int(torch.cuda._device_count_nvml()))


_simulated = 0  # devices of embedded servers; 0: the GPUs, or one CPU


def simulate(devices: int) -> None:
    """Gives the default machine this many devices at least; on embedded servers they are CPUs."""
    global _simulated
    _simulated = _launch.wanted_devices = devices
    _set_embedded_options()


_has_peers = False  # embedded servers may connect to others
_EVERYWHERE = "--peers=0.0.0.0/0,::/0"  # where this process could connect to itself


def allow_connections() -> None:
    """Embedded servers that start from now on may connect to other servers."""
    global _has_peers
    _has_peers = True
    _set_embedded_options()


def _set_embedded_options() -> None:
    options = ["--device", "cpu", "--devices", str(_simulated)] if _simulated else []
    _C.set_embedded_options([*options, _EVERYWHERE] if _has_peers else options)


def default_devices() -> int:
    """How many devices the embedded server has, without starting it."""
    return max(1, _simulated or local_gpus())


def device_count() -> int:
    """The highest index of a device, plus one. An index below it may be a stopped machine's.

    Connects to a configured URL, but never starts the embedded server.
    """
    reserved = 1 + max(_launch.reserved, default=-1)
    if not _C.is_initialized():
        if configured_url() is None:
            return max(default_devices(), reserved)
        start_default()
    for machine in _C.machine_ids():
        _C.machine_devices(machine)  # waits for the handshake
    return max(_C.device_count(), reserved)


def refuse_in_bad_fork() -> None:
    """Raises in a forked child, which cannot use its parent's sessions."""
    _C.refuse_in_bad_fork()


def start_default() -> None:
    """Connects to the default machine unless one is connected."""
    refuse_in_bad_fork()
    _C.start_default()


def _refuse_other_name(device: str) -> None:
    """Raises for a device string in the name of the package that was imported second."""
    kind, colon, index = device.partition(":")
    if kind in PACKAGES and kind != name():
        raise ValueError(
            f"{device!r}: this process calls these devices {name()!r}, since {PACKAGES[name()]} "
            f"was imported before {PACKAGES[kind]}; write {name() + colon + index!r}"
        )


def device_index(device: DeviceLike) -> int:
    """The index that a device argument means; None means the current device.

    Returns -1 for -1: `torch.cuda.device(-1)` changes nothing. The index may not exist.
    """
    if device is None:
        return _C.current_device()
    if isinstance(device, int):
        return device
    if isinstance(device, str):
        _refuse_other_name(device)
    parsed = torch.device(device)
    if parsed.type != name():
        raise ValueError(f"Expected a {name()} device, but got: {device}")
    if parsed.index is None:
        return _C.current_device()
    if parsed.index < 0:  # PyTorch keeps 8 bits of an index: remote:999 arrives here as -25
        raise no_such_device(device)
    return int(parsed.index)


def existing_index(device: DeviceLike) -> int:
    """Like `device_index`, but raises for a device that does not exist and lists those that do."""
    index = device_index(device)
    # Device 0 always exists, so naming it needs no connection.
    if index != 0 and not 0 < index < device_count():
        raise no_such_device(index if isinstance(device, int) or device is None else device)
    return index


def _existing_indices() -> list[int]:
    """The indices below `device_count()` that a machine has or is to get."""
    count = device_count()
    if not _C.is_initialized():
        return list(range(count))
    connected = (index for machine in _C.machine_ids() for index in _C.machine_devices(machine))
    return sorted({*connected, *_launch.reserved})


def no_such_device(device: DeviceLike) -> RuntimeError:
    """The error for a device that does not exist; an int stands for its index."""
    wanted = f"{name()}:{device}" if isinstance(device, int) else str(device)
    there = _existing_indices()
    names = ", ".join(f"{name()}:{index}" for index in there) or "none"
    return RuntimeError(
        f"{wanted} does not exist; there {'is' if len(there) == 1 else 'are'} {names}"
    )
