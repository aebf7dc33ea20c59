"""What Python reads itself has the device's name that programs are told: `read_as` of `enable()`.

`print(tensor)`: torch makes the text, and reads the real device for it. `_add_suffixes` of
torch/_tensor_str.py puts its parts together.

`x.storage().device`: that of an untyped storage is a getter of C++ (`redirect/types.cpp`). Torch's
TypedStorage reads it for the program, and torch is told the truth.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import _tensor_str
from torch.storage import TypedStorage, _warn_typed_storage_removal

from torch_remote_patches import Patches

from . import _C
from ._callers import truth_for_listed


def _real_name() -> str:
    accelerator = _C.accelerator()
    return torch._C._get_privateuse1_backend_name() if accelerator == "remote" else accelerator


def _print_told_name(changes: Patches, read_as: Callable[[], str | None]) -> None:
    def told(part: str) -> str:
        real, name = f"device='{_real_name()}:", read_as()
        return f"device='{name}:{part.removeprefix(real)}" if part.startswith(real) else part

    def make(add_suffixes: Any) -> Any:
        def call(tensor_str: str, suffixes: list[str], *args: Any, **kwargs: Any) -> Any:
            parts = suffixes if read_as() is None else [told(each) for each in suffixes]
            return add_suffixes(tensor_str, parts, *args, **kwargs)

        return call

    changes.wrap(_tensor_str, "_add_suffixes", make)


def _tell_name_of_storages(changes: Patches, read_as: Callable[[], str | None]) -> None:
    real: Any = vars(TypedStorage)["device"].fget

    def told(self: Any) -> torch.device:
        _warn_typed_storage_removal(3)
        found: torch.device = self._untyped_storage.device  # read from here: its own name
        name = read_as()
        # Called from TorchDevice: not redirected.
        return torch.device(name, found.index) if name and found.type == _real_name() else found

    changes.patch(TypedStorage, "device", property(truth_for_listed(told, real)))


def install(changes: Patches, read_as: Callable[[], str | None]) -> None:
    _print_told_name(changes, read_as)
    _tell_name_of_storages(changes, read_as)
