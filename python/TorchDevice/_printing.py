"""`print(tensor)` has the device's name that programs are told: `read_as` of `enable()`.

Torch makes the text, and reads the real device for it. `_add_suffixes` of torch/_tensor_str.py puts
its parts together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import _tensor_str

from torch_remote_patches import Patches

from . import _C


def real_name() -> str:
    accelerator = _C.accelerator()
    return torch._C._get_privateuse1_backend_name() if accelerator == "remote" else accelerator


def install(changes: Patches, read_as: Callable[[], str | None]) -> None:
    def told(part: str) -> str:
        real, name = f"device='{real_name()}:", read_as()
        return f"device='{name}:{part.removeprefix(real)}" if part.startswith(real) else part

    def make(add_suffixes: Any) -> Any:
        def call(tensor_str: str, suffixes: list[str], *args: Any, **kwargs: Any) -> Any:
            parts = suffixes if read_as() is None else [told(each) for each in suffixes]
            return add_suffixes(tensor_str, parts, *args, **kwargs)

        return call

    changes.wrap(_tensor_str, "_add_suffixes", make)
