"""Turning the redirect on and off, and the CPU override."""

from __future__ import annotations

import multiprocessing
import os
import sys
from typing import Any

import torch

from torch_remote_patches import Patches

from . import (
    _C,
    _callers,
    _claim,
    _errors,
    _generators,
    _hardware,
    _hooks,
    _load,
    _log,
    _masquerade,
    _printing,
    _target_cpu,
)

POLICIES = ("off", "foreign", "full")

# Behind torch_remote's errors for a forked process that uses its parent's device, and for a tensor
# that is sent to another process.
_CHILDREN_ADVICE = (
    ". Under TorchDevice's policy `full`, tensors made on `cpu` or without a device are on the "
    "remote device too{and_copies}: make those that {they} use, such as the dataset of a "
    "DataLoader with workers, inside `with TorchDevice.cpu_override():`, or set "
    "TORCHDEVICE_POLICY=foreign"
)
_FORK_ADVICE = _CHILDREN_ADVICE.format(and_copies="", they="forked processes")
_SENDING_ADVICE = _CHILDREN_ADVICE.format(
    and_copies=", and so is what `cpu()` returns", they="other processes"
)

# Behind torch_remote's error for a tensor of the CPU among those of a remote device.
_MIXING_ADVICE = {
    "full": (
        ". Under TorchDevice, tensors that share memory (from_numpy, frombuffer, from_dlpack) and "
        "those made with a generator of the CPU (generator=torch.Generator()) stay on the CPU: "
        "move them with `.to(device)`, or work on the CPU inside `with TorchDevice.cpu_override():`"
    ),
    "foreign": (
        ". Under TorchDevice's policy `foreign`, tensors made on `cpu` or without a device stay on "
        "the CPU: move them with `.to(device)`"
    ),
}

_changes = Patches()
_enabled: dict[str, Any] = {"policy": "off", "read_as": None}


def default_policy() -> str:
    """`full`, unless `TORCHDEVICE_POLICY` says otherwise. `TORCH_ALLOW_REDIRECTS=true` wins."""
    if os.environ.get("TORCH_ALLOW_REDIRECTS", "").strip().lower() == "true":
        return "full"
    policy = os.environ.get("TORCHDEVICE_POLICY", "").strip().lower() or "full"
    if policy not in POLICIES:
        raise ValueError(f"TORCHDEVICE_POLICY is {policy}; it may be full, foreign or off")
    return policy


def default_read_as() -> str | None:
    """What `TORCHDEVICE_READ_AS` says, else None."""
    read_as = os.environ.get("TORCHDEVICE_READ_AS", "").strip().lower() or None
    if read_as not in (None, *_claim.NAMES):
        raise ValueError(f"TORCHDEVICE_READ_AS is {read_as}; it may be cuda or mps")
    return read_as


def _is_data_worker() -> bool:
    worker = sys.modules.get("torch.utils.data._utils.worker")
    return worker is not None and worker._worker_info is not None


def _is_child_process() -> bool:
    """Also while a spawned process imports its parent's main module, before it has a parent."""
    process = multiprocessing.current_process()
    is_starting = getattr(process, "_inheriting", False)
    return bool(is_starting) or multiprocessing.parent_process() is not None


def _look_at_hardware(*, connect: bool = False) -> None:
    """Tells C++ what there is; imports the client if a remote machine is to be used."""
    hardware, order = _hardware.probe(connect=connect), _hardware.order()
    policy = POLICIES.index(_enabled["policy"])
    _C.set_situation(*hardware, policy, order)
    if _C.accelerator() == "remote" and "torch_remote" not in sys.modules:
        import torch_remote  # noqa: F401
    _advise()


def _advise() -> None:
    """Tells torch_remote what to add to its errors."""
    remote = sys.modules.get("torch_remote")
    if remote is not None:
        policy = _enabled["policy"] if uses_remote() else "off"
        remote._C.set_fork_advice(_FORK_ADVICE if policy == "full" else "")
        remote._interop.set_sending_advice(_SENDING_ADVICE if policy == "full" else "")
        remote._C.set_mixing_advice(_MIXING_ADVICE.get(policy, ""))


def _recount() -> None:
    """C++ calls this for an index that it does not know: `cuda:1` after a machine connected."""
    _look_at_hardware(connect=True)


def look_again() -> None:
    """torch_remote calls this at the end of its import, if TorchDevice was imported earlier."""
    if _enabled["policy"] == "off":
        return
    before = _C.accelerator()
    _look_at_hardware()
    if before != _C.accelerator():
        _masquerade.install(_C.accelerator())


def enable(policy: str | None = None, *, read_as: str | None = None) -> None:
    """Redirects from now on. Doing it twice is the same as once.

    policy="full" follows the whole table of docs/redirection.md; "foreign" redirects only
    accelerators that are not here. read_as="cuda" makes the devices of redirected tensors read
    as cuda, for programs that compare strings; read_as="mps" is for programs written for Apple's
    accelerator, and torch.cuda.is_available() is False then.
    """
    policy = default_policy() if policy is None else policy
    if policy not in POLICIES:
        raise ValueError(f"policy is {policy!r}; it may be 'full', 'foreign' or 'off'")
    read_as = default_read_as() if read_as is None else read_as
    if read_as not in (None, *_claim.NAMES):
        raise ValueError(f"read_as is {read_as!r}; it may be 'cuda', 'mps' or None")
    if policy == "off":
        disable()
        return
    before = _C.accelerator() if is_enabled() else None
    _enabled.update(policy=policy, read_as=read_as)
    _log.install()
    _C.set_callers(_callers.table())
    _C.set_recount(_recount)
    _C.set_error_handler(_errors.on_error)
    _C.set_worker_check(_is_data_worker, _is_child_process())
    _C.set_random(_generators.of_accelerator)
    _set_read_as(read_as)
    _look_at_hardware()
    if before == _C.accelerator():
        return  # what is installed stays, so that other threads see no moment without it
    if before is not None:
        _take_back()  # the override stays as it is
    _hooks.install()
    _load.install(_changes)
    _printing.install(_changes, _claim.read_as)
    _generators.install(_changes)
    accelerator = _C.accelerator()
    _C.install_kernels(accelerator != "cuda", accelerator != "mps" and not _has_mps())
    _masquerade.install(accelerator)


def _set_read_as(read_as: str | None) -> None:
    _C.set_reads_as(read_as or "")
    _claim.claim(read_as)


def _has_mps() -> bool:
    return bool(torch.backends.mps.is_built())


def disable() -> None:
    """Takes everything back: each function, type and attribute of torch is the original again."""
    if not is_enabled():
        return
    _enabled.update(policy="off", read_as=None)
    _take_back()
    _C.set_toggled(False)
    _set_read_as(None)
    _target_cpu.forget_limits()
    _C.set_situation(0, False, 0, 0, _hardware.order())
    _advise()


def _take_back() -> None:
    _hooks.remove()
    _masquerade.remove()
    _changes.undo_all()


def is_enabled() -> bool:
    return bool(_enabled["policy"] != "off")


def apply_patches() -> None:
    """Turns the redirect on unless it is on, as `import TorchDevice` does."""
    if not is_enabled():
        enable()


ensure_patched = apply_patches


def uses_remote() -> bool:
    """Whether the accelerator in use is torch_remote's; its changes to libraries ask."""
    return bool(_C.accelerator() == "remote")


def policy() -> str:
    """The policy in force: full, foreign or off."""
    return str(_enabled["policy"])


def default_device() -> torch.device:
    """The device that redirected calls use now: the accelerator, or the CPU under the override."""
    accelerator = _C.accelerator()
    if accelerator == "cpu" or _C.is_overridden():
        return _device("cpu")
    if accelerator == "remote":
        name = torch._C._get_privateuse1_backend_name()
        return _device(f"{name}:{torch.get_device_module(name).current_device()}")
    if accelerator == "cuda":
        return _device(f"cuda:{torch.cuda.current_device()}")
    return _device("mps:0")


def _device(text: str) -> torch.device:
    return torch.device(text)  # called from TorchDevice: never redirected


class CpuOverride:
    """`with TorchDevice.cpu_override():` keeps everything on the CPU for a block.

    Its truth value says whether the override is on: by a block, or by "cpu:-1". Process-wide, as
    the toggle is.
    """

    def __call__(self) -> CpuOverride:
        return self

    def __enter__(self) -> CpuOverride:
        _C.change_scopes(1)
        return self

    def __exit__(self, *exception: object) -> None:
        _C.change_scopes(-1)

    def __bool__(self) -> bool:
        return _C.is_overridden()

    def __repr__(self) -> str:
        return f"<TorchDevice.cpu_override: {'on' if self else 'off'}>"


cpu_override = CpuOverride()
