"""torch.jit.script, torch.jit.trace and torch.export: modules that run on the device."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from helpers import assert_same
from torch import nn

X = torch.linspace(-1, 1, 12).reshape(4, 3)
pytestmark = pytest.mark.filterwarnings("ignore")  # torch.jit is deprecated


class Loop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x.sum() > 100):
            return x
        for _ in range(3):
            x = self.layer(x).relu()
        return x + torch.ones(3, device=x.device)


def make(device: str) -> Any:
    torch.manual_seed(4)
    return Loop().to(device)


def saved_and_loaded(module: Any, **options: Any) -> Any:
    buffer = io.BytesIO()
    torch.jit.save(module, buffer)
    buffer.seek(0)
    return torch.jit.load(buffer, **options)


def test_a_scripted_module_runs_again_and_again_with_gradients() -> None:
    def run(device: str) -> Any:
        module = torch.jit.script(make(device))
        x = X.to(device, copy=True).requires_grad_()
        outputs = [module(x) for _ in range(4)]  # later calls are optimized ones
        sum(output.square().sum() for output in outputs).backward()
        return outputs, module(x * 1000), x.grad, [p.grad for p in module.parameters()]

    assert_same(run("remote"), run("cpu"))


@pytest.mark.parametrize("source", ["cpu", "remote"])
@pytest.mark.parametrize("target", [None, "cpu", "remote", "remote:0"])
def test_a_scripted_module_is_saved_and_loaded_on_either_device(
    source: str, target: str | None
) -> None:
    module = torch.jit.script(make("cpu")).to(source)
    loaded = saved_and_loaded(module, map_location=target)
    wanted = (target or source).split(":")[0]
    assert loaded.layer.weight.device.type == wanted
    assert_same(loaded(X.to(wanted)), make("cpu")(X))


def test_traced_and_frozen_modules_run() -> None:
    expected = make("cpu")(X + 1)
    traced = torch.jit.trace(make("remote"), X.to("remote"))
    frozen = torch.jit.freeze(torch.jit.script(make("remote").eval()))
    for module in (traced, frozen, saved_and_loaded(traced), traced.to("remote")):
        for _ in range(3):
            assert_same(module(X.to("remote") + 1), expected)


def test_a_scripted_function_makes_tensors_on_the_device() -> None:
    @torch.jit.script
    def made(size: int, device: torch.device) -> torch.Tensor:
        return torch.arange(size, device=device).to(torch.float32).sqrt()

    assert_same(made(5, torch.device("remote")), made(5, torch.device("cpu")))


def test_an_exported_module_runs_and_is_saved_and_loaded() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.GELU(), nn.LayerNorm(3))
    expected = module(X)
    exported = torch.export.export(module.to("remote"), (X.to("remote"),))
    buffer = io.BytesIO()
    torch.export.save(exported, buffer)
    buffer.seek(0)
    for program in (exported, torch.export.load(buffer), exported.run_decompositions({})):
        assert_same(program.module()(X.to("remote")), expected)


def test_a_symbolically_traced_module_runs() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    expected = module(X)
    assert_same(torch.fx.symbolic_trace(module.to("remote"))(X.to("remote")), expected)
