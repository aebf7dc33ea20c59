"""`memory_budget`: limits and measures the tensors that a block makes, on any device."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from torch_remote_patches.byte_count import parse_bytes


def empty_cache() -> None:
    """That of `torch.cuda`, which answers for the device in use."""
    torch.cuda.empty_cache()


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """That of `torch.cuda`, which answers for the device in use."""
    torch.cuda.set_per_process_memory_fraction(fraction, device)


class memory_budget(TorchDispatchMode):  # type: ignore[misc]
    """`with memory_budget("2GiB") as m:`; then `m.peak` and `m.allocated` are the block's bytes.

    Raises `torch.OutOfMemoryError` at the operator whose result does not fit. Counts the storages
    of tensors made in the block and not freed yet, of this thread and of its backward passes.
    """

    def __init__(self, limit: int | str | None = None) -> None:
        super().__init__()
        self.limit = None if limit is None else parse_bytes(limit)
        self.allocated = 0
        self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {self._key(each) for each in tree_flatten((args, kwargs))[0] if _is_tensor(each)}
        result = func(*args, **(kwargs or {}))
        refusal = self._add_new(result, known, str(func))
        if refusal is None:
            return result
        del result  # the error keeps this frame, and the tensor that does not fit is to be freed
        raise refusal

    def _add_new(self, result: Any, known: set[int], name: str) -> torch.OutOfMemoryError | None:
        for tensor in tree_flatten(result)[0]:
            if _is_tensor(tensor) and self._key(tensor) not in known:
                refusal = self._add(tensor, name)
                if refusal is not None:
                    return refusal
        return None

    @staticmethod
    def _key(tensor: torch.Tensor) -> int:
        return int(tensor.untyped_storage()._cdata)

    def _add(self, tensor: torch.Tensor, name: str) -> torch.OutOfMemoryError | None:
        """Counts a tensor; the error if it does not fit."""
        key, size = self._key(tensor), tensor.untyped_storage().nbytes()
        if key in self._seen:
            return None
        if self.limit is not None and self.allocated + size > self.limit:
            return torch.OutOfMemoryError(
                f"{tensor.device} out of memory. {name} needs {size} bytes, and the budget of "
                f"{self.limit} bytes has {self.limit - self.allocated} left"
            )
        self._seen.add(key)
        self.allocated += size
        self.peak = max(self.peak, self.allocated)
        weakref.finalize(tensor.untyped_storage(), self._remove, key, size)
        return None

    def _remove(self, key: int, size: int) -> None:
        if key in self._seen:
            self._seen.discard(key)
            self.allocated -= size


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)
