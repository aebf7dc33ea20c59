"""Refuses kernels that only CUDA runs, where the CPU or MPS is in use: Triton and CUDA source.

torch_remote refuses them for remote devices.
"""

from __future__ import annotations

import functools
import os
from typing import Any

from torch_remote_patches import Patches

from ._table import KERNELS


def _extensions(changes: Patches, cpp_extension: Any) -> None:
    """`load()` and `load_inline(cuda_sources=...)`."""
    build = cpp_extension._jit_compile

    @functools.wraps(build)
    def checked(name: str, sources: Any, *args: Any, **kwargs: Any) -> Any:
        files = [sources] if isinstance(sources, str) else sources
        if any(map(cpp_extension._is_cuda_file, files)):
            raise NotImplementedError(f"the extension {name}: {KERNELS}")
        return build(name, sources, *args, **kwargs)

    changes.patch(cpp_extension, "_jit_compile", checked)


def _triton(changes: Patches, jit: Any) -> None:
    """`kernel[grid](...)`, which all kinds of Triton kernels share."""
    choose_grid = jit.KernelInterface.__getitem__

    @functools.wraps(choose_grid)
    def checked(self: Any, grid: Any) -> Any:
        if os.environ.get("TRITON_INTERPRET") == "1":  # runs on the CPU
            return choose_grid(self, grid)
        name = getattr(self, "__name__", "a kernel")
        raise NotImplementedError(
            f"the Triton kernel {name}: {KERNELS.replace('CUDA source', 'it')}"
        )

    changes.patch(jit.KernelInterface, "__getitem__", checked)


def install(changes: Patches, kind: str) -> None:
    if kind not in ("cpu", "mps"):
        return
    for module, change in (
        ("torch.utils.cpp_extension", _extensions),
        ("triton.runtime.jit", _triton),
    ):
        changes.change_module(module, functools.partial(change, changes))
