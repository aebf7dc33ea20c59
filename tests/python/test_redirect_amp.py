"""Autocast, ranges and profiles of `torch.cuda` while something else is in use."""

from __future__ import annotations

import inspect
import threading
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from redirecting import TorchDevice, redirected


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_amp_means_the_device_in_use(used: str) -> None:
    x = torch.ones(4, 4, device="cuda")
    for mode in (torch.autocast("cuda"), torch.amp.autocast("cuda"), torch.cuda.amp.autocast()):
        with mode:  # the CPU's own default, or CUDA's
            assert (x @ x).dtype == (torch.bfloat16 if used == "cpu" else torch.float16)
            assert torch.get_autocast_dtype("cuda") == (x @ x).dtype
    for named in (torch.autocast("cuda", torch.float16), torch.cuda.amp.autocast(dtype=torch.half)):
        with named:
            assert (x @ x).dtype == torch.float16
    with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16
        assert torch.is_autocast_enabled("cuda")
        assert torch.is_autocast_enabled()
        assert torch.get_autocast_dtype("cuda") == torch.bfloat16
        assert torch.get_autocast_dtype(device_type="cuda") == torch.bfloat16
        assert torch.is_autocast_enabled(device_type="cuda")
        torch.set_autocast_enabled(enabled=False)
        assert not torch.is_autocast_enabled("cuda")
        torch.set_autocast_enabled(device_type="cuda", enabled=True)
        torch.set_autocast_dtype(device_type="cuda", dtype=torch.float16)
        assert (x @ x).dtype == torch.float16
    assert not torch.is_autocast_enabled("cuda")
    assert torch.amp.is_autocast_available("cuda")
    for scaler in (torch.amp.GradScaler("cuda"), torch.cuda.amp.GradScaler(), torch.GradScaler()):
        assert scaler.is_enabled()
        module = torch.nn.Linear(2, 1).cuda()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        scaler.scale(module(torch.ones(1, 2, device="cuda")).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    class Twice(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        @torch.cuda.amp.custom_fwd
        def forward(context: Any, value: torch.Tensor) -> torch.Tensor:
            return value * 2

        @staticmethod
        @torch.cuda.amp.custom_bwd
        def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * 2

    y = x.clone().requires_grad_()
    Twice.apply(y).sum().backward()
    assert y.grad.unique().tolist() == [2.0]


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_under_full_autocast_of_the_cpu_means_the_device_in_use(used: str) -> None:
    x = torch.ones(4, 4, device="cpu")
    assert str(x.device) == used
    modes = (
        torch.autocast("cpu"),
        torch.autocast(device_type="cpu", dtype=torch.bfloat16),
        torch.cpu.amp.autocast(),
    )
    for mode in modes:
        with mode:
            assert (x @ x).dtype == torch.bfloat16
            assert torch.is_autocast_enabled("cpu")
            assert torch.is_autocast_enabled(device_type="cpu")
            assert torch.get_autocast_dtype("cpu") == torch.bfloat16
            assert torch.get_autocast_dtype(device_type="cpu") == torch.bfloat16
            with torch.autocast("cpu", enabled=False):
                assert (x @ x).dtype == torch.float32
                torch.set_autocast_enabled("cpu", True)
                assert (x @ x).dtype == torch.bfloat16
        assert not torch.is_autocast_enabled("cpu")
        assert (x @ x).dtype == torch.float32
    with torch.autocast("cpu", torch.float16):
        assert (x @ x).dtype == torch.float16
    with TorchDevice.cpu_override(), torch.autocast("cpu"):
        here = torch.ones(2, 2)
        assert ((here @ here).dtype, here.device.type) == (torch.bfloat16, "cpu")


def test_under_full_a_compiled_function_has_autocast_of_the_cpu(used: str) -> None:
    @torch.compile(backend="aot_eager")
    def multiply(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x @ x

    x = torch.ones(4, 4)
    assert multiply(x).dtype == torch.bfloat16
    with torch.autocast("cpu"):
        assert torch.compile(torch.mm, backend="aot_eager")(x, x).dtype == torch.bfloat16
    assert not torch.is_autocast_enabled("cpu")


def test_under_full_checkpoints_and_functions_know_autocast_of_the_cpu(used: str) -> None:
    seen: list[torch.dtype] = []

    class Double(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
        def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        @torch.amp.custom_bwd(device_type="cpu")
        def backward(context: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * 2

    def multiply(x: torch.Tensor) -> torch.Tensor:
        seen.append((x @ x).dtype)
        return x @ x

    x = torch.ones(4, 4, requires_grad=True)
    with torch.autocast("cpu"):
        y = torch.utils.checkpoint.checkpoint(multiply, x, use_reentrant=False)
        z = Double.apply(y)
    assert (y.dtype, z.dtype) == (torch.bfloat16, torch.float32)
    z.sum().backward()
    assert seen == [torch.bfloat16] * 2
    assert x.grad is not None and x.grad.tolist() == [[16.0] * 4] * 4


def test_under_foreign_autocast_of_the_cpu_is_the_cpus() -> None:
    with redirected("remote", "foreign"), torch.autocast("cpu"):
        here, there = torch.ones(2, 2), torch.ones(2, 2, device="cuda")
        assert ((here @ here).dtype, (there @ there).dtype) == (torch.bfloat16, torch.float32)
        assert not torch.is_autocast_enabled("cuda")


def test_autocast_of_the_cpu_is_logged(remote: str) -> None:
    with torch.autocast("cpu"):
        line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
    found = [each for each in TorchDevice.sites() if each.file == __file__ and each.line == line]
    assert [(each.api, each.asked, each.used) for each in found] == [
        ("torch.autocast", "cpu", remote)
    ]


def test_ranges_of_nvtx_are_ranges_of_the_profiler(used: str) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        torch.cuda.nvtx.range_push("outer part")
        with torch.cuda.nvtx.range("inner part"):
            torch.ones(1, device="cuda").add_(1)
        torch.cuda.nvtx.range_pop()
        torch.cuda.nvtx.mark("here")
    assert {"outer part", "inner part", "here"} <= {event.name for event in profile.events()}
    torch.cuda.nvtx.range_push("of this thread")
    other = threading.Thread(target=torch.cuda.nvtx.range_pop)
    other.start()
    other.join()
    assert torch.cuda.nvtx.range_push("inside") == 1
    assert [torch.cuda.nvtx.range_pop(), torch.cuda.nvtx.range_pop()] == [1, 0]


@pytest.mark.filterwarnings("error::UserWarning")
def test_a_profile_of_cuda_is_one_of_the_remote_device(remote: str) -> None:
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    matrix = torch.ones(8, 8, device="cuda")
    with torch.profiler.profile(activities=kinds) as profile:
        matrix.mm(matrix)
    (row,) = [each for each in profile.key_averages() if each.key == "aten::mm"]
    assert row.self_device_time_total > 0
