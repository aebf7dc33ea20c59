"""Refuses what needs an address in this process: DLPack, CUDA's array interface, queues.

A remote tensor has no address here. The errors say what to do instead.
"""

from __future__ import annotations

import functools
import threading
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing import reductions

from ._backend import is_ours
from ._patches import patch, patch_item


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


def _refuse_to_send(text: str) -> None:
    raise RuntimeError(text)


def _reduce_tensor(tensor: torch.Tensor) -> Any:
    if not is_ours(tensor):
        return reductions.reduce_tensor(tensor)
    text = (
        f"A tensor on {tensor.device} belongs to the session of this process and cannot be sent "
        "to another one; send tensor.cpu() and move it to a device there"
    )
    # Python prints exceptions of a queue's thread, and the receiver (a DataLoader) would wait for
    # ever. So the error is sent instead of the tensor, and raised by the receiver.
    if threading.current_thread().name == "QueueFeederThread":
        return _refuse_to_send, (text,)
    return _refuse_to_send(text)


def install() -> None:
    """Patches the methods of DLPack, the array interface and the reducer of queues."""
    for name in ("__dlpack__", "__dlpack_device__"):
        patch(torch.Tensor, name, _refuse_dlpack(getattr(torch.Tensor, name)))
    interface: Any = torch.Tensor.__cuda_array_interface__
    patch(torch.Tensor, "__cuda_array_interface__", _refuse_array_interface(interface))
    to_dlpack = _refuse_dlpack(torch.utils.dlpack.to_dlpack)
    for module in (torch, torch.utils.dlpack):
        patch(module, "to_dlpack", to_dlpack)
    reducers: dict[type, Any] = vars(ForkingPickler)["_extra_reducers"]
    for kind in (torch.Tensor, torch.nn.Parameter):
        patch_item(reducers, kind, _reduce_tensor)
