"""Refuses kernels compiled in this process: Triton, CUDA source, AOTInductor.

They get addresses on this machine, and a remote tensor has none. The errors say what to do instead.
In place of inductor, the default backend of `torch.compile`, there is `_compile.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

from . import _compile
from ._backend import is_ours, name
from ._patches import change_module, patch

_WAY_OUT = (
    "compose it of PyTorch's operators, or have the server load it as a library of operators "
    "(torch-remote serve --library)"
)


def _check_arguments(kind: str, arguments: Sequence[Any]) -> None:
    for argument in arguments:
        if isinstance(argument, torch.Tensor) and is_ours(argument):
            raise NotImplementedError(
                f"{kind} runs on this machine, and a tensor on {argument.device} is not in its "
                f"memory: {_WAY_OUT}"
            )


def _guard_triton(jit: ModuleType) -> None:
    """`kernel[grid](…)`, which all kinds of Triton kernels share."""
    choose_grid = jit.KernelInterface.__getitem__

    @functools.wraps(choose_grid)
    def checked(self: Any, grid: Any) -> Any:
        launch = choose_grid(self, grid)

        def run(*args: Any, **kwargs: Any) -> Any:
            _check_arguments("A Triton kernel", (*args, *kwargs.values()))
            return launch(*args, **kwargs)

        return run

    patch(jit.KernelInterface, "__getitem__", checked)


def _guard_jiterator(jiterator: ModuleType) -> None:
    call = jiterator._JittedFunction.__call__

    @functools.wraps(call)
    def checked(self: Any, *tensors: Any, **kwargs: Any) -> Any:
        _check_arguments("A kernel of CUDA source", tensors)
        return call(self, *tensors, **kwargs)

    patch(jiterator._JittedFunction, "__call__", checked)


def _guard_extensions(cpp_extension: Any) -> None:
    """`load` and `load_inline` of CUDA source, if no device here can run it."""
    build = cpp_extension._jit_compile

    @functools.wraps(build)
    def checked(extension: str, sources: Any, *args: Any, **kwargs: Any) -> Any:
        files = [sources] if isinstance(sources, str) else sources
        if any(map(cpp_extension._is_cuda_file, files)) and not torch.cuda.is_available():
            raise NotImplementedError(
                f"{extension}: an extension of CUDA source runs on this machine, which has no CUDA "
                f"device, and not on {name()}: {_WAY_OUT}"
            )
        return build(extension, sources, *args, **kwargs)

    patch(cpp_extension, "_jit_compile", checked)


def _replace_inductor(compile_fx: Any) -> None:
    """`torch.compile` with its default backend: what is remote goes to ours."""
    make_kernels = compile_fx.compile_fx

    @functools.wraps(make_kernels)
    def choose(graph: Any, inputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        if not _compile.uses_remote(graph, inputs):
            return make_kernels(graph, inputs, *args, **kwargs)
        if compile_fx.V.aot_compilation:
            raise NotImplementedError(
                "AOTInductor makes kernels for this machine, and remote tensors are not in its "
                "memory: compile with torch.compile, which makes programs of the server"
            )
        return _compile.compile_graph(graph, inputs)

    patch(compile_fx, "compile_fx", choose)


def install() -> None:
    """Patches each module now if it is imported, else once it is."""
    change_module("triton.runtime.jit", _guard_triton)
    change_module("torch.cuda.jiterator", _guard_jiterator)
    change_module("torch.utils.cpp_extension", _guard_extensions)
    change_module("torch._inductor.compile_fx", _replace_inductor)
