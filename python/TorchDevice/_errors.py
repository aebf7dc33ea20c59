"""Errors of redirected calls, as a CUDA program expects them."""

from __future__ import annotations

import gc
import sys
from typing import Any

import torch

_SHOWN = 5
# What torch's allocators of the CPU say; CUDA's raise torch.OutOfMemoryError themselves.
_NO_MEMORY = ("can't allocate memory", "not enough memory")


def is_out_of_memory(error: BaseException) -> bool:
    text = str(error)
    return isinstance(error, torch.OutOfMemoryError) or any(each in text for each in _NO_MEMORY)


def _largest_tensors() -> str:
    tensors = {
        id(each): each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)
    }.values()
    rows = sorted(((each.nbytes, each) for each in tensors), key=lambda row: -row[0])[:_SHOWN]
    return ", ".join(f"{size} bytes {tuple(t.shape)} {t.dtype} {t.device}" for size, t in rows)


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
        gc.collect()
        torch.cuda.empty_cache()  # of the device in use
        return True
    free, total = torch.cuda.mem_get_info()
    text = f"{error}\n{free} of {total} bytes are free. The largest tensors: {_largest_tensors()}"
    return _because_of(error, torch.OutOfMemoryError(text))
