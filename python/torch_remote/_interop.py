"""Refuses what needs an address in this process: DLPack, CUDA's array interface, queues, map_(),
byteswap().

A remote tensor has no address here. The errors say what to do instead. Pickles of devices import
this package, without which torch does not know their name.
"""

from __future__ import annotations

import copyreg
import functools
import os
import threading
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import _weights_only_unpickler
from torch.multiprocessing import reductions

from ._backend import is_ours, name
from ._patches import noting, patch, patch_item


def _refuse_dlpack(method: Any) -> Any:
    @functools.wraps(method)
    def checked(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if is_ours(self):
            raise BufferError(
                f"A tensor on {self.device} has no memory in this process to share through DLPack; "
                "use tensor.cpu() to copy it here first"
            )
        return method(self, *args, **kwargs)

    return checked


def _refuse_array_interface(interface: property) -> property:
    def checked(self: torch.Tensor) -> Any:
        if is_ours(self):  # AttributeError: hasattr() is False, so libraries take another way
            raise AttributeError(
                f"A tensor on {self.device} has no memory in this process, so it has no "
                "__cuda_array_interface__; use tensor.cpu() to copy it here first"
            )
        assert interface.fget is not None
        return interface.fget(self)

    return property(checked, doc=interface.__doc__)


def _refuse_per_element(method: Any) -> Any:
    @functools.wraps(method)
    def checked(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        given = (self, *args, *kwargs.values())
        ours = [each for each in given if isinstance(each, torch.Tensor) and is_ours(each)]
        if ours:
            called = method.__name__
            raise TypeError(
                f"{called} is only implemented on CPU tensors: it calls a Python function for each "
                f"element, and one of these tensors is on {ours[0].device}; use PyTorch's "
                f"operators, or tensor.copy_(tensor.cpu().{called}(...)) with tensors of the CPU"
            )
        return method(self, *args, **kwargs)

    return checked


def _refuse_byteswap(method: Any) -> Any:
    @functools.wraps(method)
    def checked(self: Any, dtype: torch.dtype) -> Any:
        if self.device.type == name():
            raise NotImplementedError(
                f"byteswap() changes bytes in this process, and those of this storage are on "
                f"{self.device}; use storage.copy_(...) with a copy that storage.cpu() has made"
            )
        return method(self, dtype)

    return checked


# What to do with a tensor that cannot be sent. TorchDevice sets another text where tensor.cpu() is
# on our device too.
_SENDING_ADVICE = "; send tensor.cpu() and move it to a device there"
_sending_advice = [_SENDING_ADVICE]


def set_sending_advice(advice: str) -> None:
    """Empty: the usual one."""
    _sending_advice[0] = advice or _SENDING_ADVICE


def _refuse_to_send(text: str) -> None:
    raise RuntimeError(text)


def _reduce_tensor(tensor: torch.Tensor) -> Any:
    if not is_ours(tensor):
        return reductions.reduce_tensor(tensor)
    # Python prints exceptions of a queue's thread, and the receiver (a DataLoader) would wait for
    # ever. So the error is sent instead of the tensor, and raised by the receiver.
    is_sent = threading.current_thread().name == "QueueFeederThread"
    owner = f"process {os.getpid()}, which sent it," if is_sent else "this process"
    text = (
        f"A tensor on {tensor.device} belongs to the session of {owner} and cannot be sent to "
        f"another one{_sending_advice[0]}"
    )
    return (_refuse_to_send, (text,)) if is_sent else _refuse_to_send(text)


def make_device(index: int | None) -> torch.device:
    """What a pickle of a device calls. The name is the one in force, `remote` or `modal`."""
    return torch.device(name()) if index is None else torch.device(name(), index)


def _reduce_device(device: torch.device) -> Any:
    return (make_device, (device.index,)) if device.type == name() else device.__reduce__()


def install() -> None:
    """Patches the methods of DLPack, the array interface, and the reducers."""
    patch_item(copyreg.dispatch_table, torch.device, _reduce_device)
    with noting(_weights_only_unpickler):
        torch.serialization.add_safe_globals([make_device])
    for method in ("__dlpack__", "__dlpack_device__"):
        patch(torch.Tensor, method, _refuse_dlpack(getattr(torch.Tensor, method)))
    interface: Any = torch.Tensor.__cuda_array_interface__
    patch(torch.Tensor, "__cuda_array_interface__", _refuse_array_interface(interface))
    to_dlpack = _refuse_dlpack(torch.utils.dlpack.to_dlpack)
    for module in (torch, torch.utils.dlpack):
        patch(module, "to_dlpack", to_dlpack)
    for method in ("apply_", "map_", "map2_"):
        patch(torch.Tensor, method, _refuse_per_element(getattr(torch.Tensor, method)))
    storage: Any = torch.storage._StorageBase
    patch(storage, "byteswap", _refuse_byteswap(storage.byteswap))
    reducers: dict[type, Any] = vars(ForkingPickler)["_extra_reducers"]
    for kind in (torch.Tensor, torch.nn.Parameter):
        patch_item(reducers, kind, _reduce_tensor)
