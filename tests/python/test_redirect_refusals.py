"""What only CUDA or Metal has: refused by name, with what to use in its place."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from redirecting import redirected

from TorchDevice import _errors


def test_nccl_itself_is_refused(used: str) -> None:
    for name in ("version", "all_reduce", "broadcast"):
        with pytest.raises(NotImplementedError, match=r"torch\.distributed"):
            getattr(torch.cuda.nccl, name)()


def test_kernels_in_cuda_source_are_refused(used: str) -> None:
    with pytest.raises(NotImplementedError, match="CUDA source"):
        torch.cuda.jiterator._create_jit_fn("template <typename T> T f(T x) { return x; }")
    if hasattr(torch.cuda, "_compile_kernel"):
        with pytest.raises(NotImplementedError, match="CUDA source"):
            torch.cuda._compile_kernel("__global__ void f() {}", "f")


SOURCES = {"cpp_sources": "int f();", "cuda_sources": "int f() { return 1; }", "functions": ["f"]}


def test_extensions_of_cuda_source_are_refused(used: str) -> None:
    from torch.utils import cpp_extension

    with pytest.raises(NotImplementedError, match="operators"):
        cpp_extension.load_inline("redirect_refused", **SOURCES)


def test_triton_kernels_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class KernelInterface:
        def __getitem__(self, grid: Any) -> Any:
            return lambda *args: "ran"

    jit = ModuleType("triton.runtime.jit")
    jit.KernelInterface = KernelInterface  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", jit)
    with redirected("cpu"):
        with pytest.raises(NotImplementedError, match=r"Triton kernel.*torch operators"):
            KernelInterface()[(1,)](torch.ones(1))
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        assert KernelInterface()[(1,)](torch.ones(1)) == "ran"
    assert KernelInterface()[(1,)](torch.ones(1)) == "ran"


@pytest.mark.parametrize(
    ("text", "advised"),
    [
        ("Cannot convert a MPS Tensor to float64 dtype", True),
        ("MPS doesn't support float64. Please use float32 instead.", False),
        ("tensors of float64 are slow", False),
    ],
)
def test_float64_on_mps_is_refused_with_advice(text: str, advised: bool) -> None:
    answer = _errors.on_error(TypeError(text), 0)
    assert (answer is not None) == advised
    if answer is not None:
        assert type(answer) is TypeError
        assert text in str(answer)
        assert "use float32" in str(answer)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("full", "from_numpy.*generator of the CPU.*TorchDevice.cpu_override"),
        ("foreign", "or without a device stay"),
    ],
)
def test_mixed_devices_are_refused_with_what_to_do(policy: str, words: str) -> None:
    here = torch.frombuffer(bytearray(8), dtype=torch.float32)
    mixes: list[Callable[[torch.Tensor], object]] = [
        lambda x: x + here,
        lambda x: here.mul_(x),
        lambda x: torch.cat([x, here]),
        lambda x: torch.nn.functional.linear(here, x[None]),
        lambda x: torch.layer_norm(x, (2,), here),
    ]
    with redirected("remote", policy):
        x = torch.ones(2, device="cuda")
        for mix in mixes:
            with pytest.raises(RuntimeError, match="on the same device") as raised:
                mix(x)
            assert re.search(rf"{words}.*$", str(raised.value)), str(raised.value)
            assert "`.to(device)`" in str(raised.value)
    with pytest.raises(RuntimeError, match="on the same device") as raised:
        x + here
    assert "TorchDevice" not in str(raised.value)


def test_what_only_cuda_or_metal_has_is_refused_by_name(used: str) -> None:
    with pytest.raises(NotImplementedError, match="cudaHostRegister"):
        torch.cuda.cudart().cudaHostRegister(0, 1, 0)
    with pytest.raises(NotImplementedError, match="compile_shader"):
        torch.mps.compile_shader("kernel void f() {}")
    torch.mps.profiler.start()
    torch.mps.profiler.stop()
