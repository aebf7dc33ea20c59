"""Errors of redirected calls, as a CUDA program expects them."""

from __future__ import annotations

import gc
import sys
from typing import Any

import torch

from . import _C
from ._places import place_of

_SHOWN = 5
# What torch's allocators of the CPU say; CUDA's raise torch.OutOfMemoryError themselves.
_NO_MEMORY = ("can't allocate memory", "not enough memory")


def is_out_of_memory(error: BaseException) -> bool:
    text = str(error)
    return isinstance(error, torch.OutOfMemoryError) or any(each in text for each in _NO_MEMORY)


def _memory_of(tensor: torch.Tensor) -> tuple[int, int]:
    """The address of the storage and its bytes; zeros for a tensor without one."""
    try:
        storage = tensor.untyped_storage()
        return storage._cdata, int(storage.nbytes())
    except (RuntimeError, NotImplementedError):  # sparse and fake tensors
        return 0, 0


def _describe(tensor: torch.Tensor, size: int) -> str:
    text = f"{size} bytes {tuple(tensor.shape)} {tensor.dtype} {tensor.device}"
    made = _C.maker_of(tensor)
    return f"{text} made at {place_of(*made[:2])} in {made[2]}" if made else text


def _is_there(tensor: torch.Tensor, size: int, total: int) -> bool:
    """Whether a tensor can have its memory: not if it is of the device meta, or was never made.

    A tensor on a remote device exists here before its memory does there.
    """
    if tensor.device.type == "cpu":
        return True
    if tensor.device.type == "meta" or size > total:
        return False
    remote = sys.modules.get("torch_remote")
    return remote is None or not remote._C.may_be_missing(tensor)


def _largest_tensors(total: int) -> str:
    """The largest storages that Python's tensors have, and the lines that made them."""
    found: dict[int, tuple[int, torch.Tensor]] = {}
    for each in gc.get_objects():
        if issubclass(type(each), torch.Tensor):
            storage, size = _memory_of(each)
            if _is_there(each, size, total):
                found[storage] = size, each
    rows = sorted(found.values(), key=lambda row: -row[0])[:_SHOWN]
    return ", ".join(_describe(tensor, size) for size, tensor in rows if size)


def _free_memory() -> None:
    gc.collect()
    torch.cuda.empty_cache()  # of the device in use


def _with_figures(text: str) -> str:
    free, total = torch.cuda.mem_get_info()
    largest = _largest_tensors(total)
    shown = f" The largest tensors: {largest}" if largest else ""
    return f"{text}\n{free} of {total} bytes are free.{shown}"


def _is_of_another_call(error: BaseException) -> bool:
    """Whether an earlier call failed on the server, and this one only reports it."""
    remote = sys.modules.get("torch_remote")
    return (
        remote is not None and isinstance(error, remote.RemoteError) and not error.is_of_this_call
    )


def explained(error: BaseException) -> BaseException | None:
    """Torch's own error with what to do, for float64 on MPS; None: the error says it."""
    text = str(error)
    if "mps" not in text.lower() or "float64" not in text or "use float32" in text:
        return None
    return _because_of(error, type(error)(f"{text}\nMPS has no float64: use float32"))


def _because_of(cause: BaseException, error: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


def on_error(error: BaseException, attempt: int) -> Any:
    """C++ calls this for an error of a hooked call: None leaves it, True tries again."""
    if _is_of_another_call(error):
        return None
    if not is_out_of_memory(error):
        return explained(error)
    if attempt == 0:
        _free_memory()
        return True
    return _because_of(error, torch.OutOfMemoryError(_with_figures(str(error))))
