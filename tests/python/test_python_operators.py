"""Operators defined in Python, and kernels that want an address: `torch.library.custom_op`."""

from __future__ import annotations

import signal

import pytest
import torch
from helpers import DEVICE, assert_gradients_match_cpu, assert_matches_cpu, run_python


@torch.library.custom_op("tests_python::smooth", mutates_args=())
def smooth(x: torch.Tensor, weight: float) -> torch.Tensor:
    return torch.tanh(x) * weight + x.roll(1, 0)


@smooth.register_fake
def _(x: torch.Tensor, weight: float) -> torch.Tensor:
    return torch.empty_like(x)


def _setup(ctx: torch.autograd.function.FunctionCtx, inputs: tuple, output: torch.Tensor) -> None:
    x, weight = inputs
    ctx.save_for_backward(x)
    ctx.weight = weight


def _backward(ctx: torch.autograd.function.FunctionCtx, grad: torch.Tensor) -> tuple:
    (x,) = ctx.saved_tensors
    return grad * (1 - torch.tanh(x) ** 2) * ctx.weight + grad.roll(-1, 0), None


smooth.register_autograd(_backward, setup_context=_setup)


@torch.library.custom_op("tests_python::accumulate", mutates_args={"total"})
def accumulate(total: torch.Tensor, x: torch.Tensor) -> None:
    total.add_(x.sum())


@torch.library.custom_op("tests_python::on_cpu_only", mutates_args=(), device_types="cpu")
def on_cpu_only(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.numpy() * 2)


def test_a_python_operator_runs_here_with_remote_tensors() -> None:
    assert_matches_cpu(smooth, torch.randn(4, 3), 0.5)


def test_its_gradient_is_the_one_it_registered() -> None:
    assert_gradients_match_cpu(smooth, torch.randn(4, 3, requires_grad=True), 0.5)


def test_it_writes_its_arguments() -> None:
    def run(total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        accumulate(total, x)
        return total

    assert_matches_cpu(run, torch.zeros(2), torch.randn(5))


def test_one_for_the_cpu_only_is_not_implemented_at_the_call() -> None:
    with pytest.raises(NotImplementedError, match=r"tests_python::on_cpu_only") as raised:
        on_cpu_only(torch.ones(2, device=DEVICE))
    assert ".cpu()" in str(raised.value)


def test_data_ptr_tells_storages_apart_and_moves_with_the_offset() -> None:
    x, y = torch.ones(4, device=DEVICE), torch.ones(4, device=DEVICE)
    assert x.data_ptr() != y.data_ptr()
    assert x[1:].data_ptr() == x.data_ptr() + x.itemsize
    assert x.view(2, 2).data_ptr() == x.data_ptr()


def test_a_kernel_that_takes_the_address_for_one_stops_at_once_and_reads_nothing() -> None:
    """Triton and CUDA source are not supported. A remote address never points to other data."""
    done = run_python("""
        import ctypes, torch, torch_remote
        x = torch.ones(1 << 20, device="remote")
        x.sum().item()
        print(ctypes.string_at(x.data_ptr(), 4))
    """)
    assert (done.returncode, done.stdout) == (-signal.SIGSEGV, "")
