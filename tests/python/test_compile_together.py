"""torch.compile together with checkpoints, hooks, torch.func, optimizers, autocast and threads."""

from __future__ import annotations

import contextlib
import copy
import threading
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from compile_parts import (  # noqa: F401
    compiled,
    every_graph_is_a_program,
    forget_what_was_compiled,
    same_on_both,
)
from helpers import DEVICE
from torch import nn

Tensor = torch.Tensor


def test_autocast_inside_and_outside(no_line: None) -> None:
    x = torch.randn(4, 4).to(DEVICE)

    def inside(value: Tensor) -> Tensor:
        with torch.autocast("remote", dtype=torch.bfloat16):
            return value @ value

    step = torch.compile(inside)
    assert all(torch.equal(step(x), inside(x)) for _ in range(3))
    product = torch.compile(lambda value: value @ value)
    for _ in range(2):
        with torch.autocast("remote", dtype=torch.bfloat16):
            assert product(x).dtype == torch.bfloat16
        assert product(x).dtype == torch.float32


def test_graph_breaks_recompiles_and_nested_compile(no_line: None) -> None:
    def run(device: str) -> list[Tensor]:
        inner = compiled(lambda x: x.relu() * 3, device)

        def outer(x: Tensor, times: int) -> Tensor:
            y = x * times
            torch._dynamo.graph_break()
            return inner(y) + 1

        function = compiled(outer, device)
        x = torch.randn(3).to(device)
        return [function(x, times) for times in (1, 2, 3, 2, 1)]

    same_on_both(run)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(reentrant: bool) -> None:
    def run(device: str) -> list[Tensor]:
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).to(device)

        def step(x: Tensor) -> Tensor:
            return torch.utils.checkpoint.checkpoint(model, x, use_reentrant=reentrant).sum()

        function = compiled(step, device)
        for _ in range(3):
            function(torch.randn(2, 4).to(device).requires_grad_()).backward()
        return [gradient for each in model.parameters() if (gradient := each.grad) is not None]

    same_on_both(run)


def test_hooks_run_and_see_the_gradient() -> None:
    def run(device: str) -> list[Tensor]:
        model = nn.Linear(3, 3).to(device)
        seen: list[Tensor] = []
        model.weight.register_hook(lambda gradient: seen.append(gradient.clone()))
        function = compiled(model, device)
        for _ in range(3):
            function(torch.randn(2, 3).to(device)).sum().backward()
        return seen

    same_on_both(run)


def test_functions_of_torch_func(no_line: None) -> None:
    def run(device: str) -> list[Tensor]:
        def loss(weight: Tensor, x: Tensor) -> Tensor:
            return (x @ weight).square().sum()

        function = compiled(torch.func.vmap(torch.func.grad(loss), (None, 0)), device)
        weight = torch.randn(3, 2).to(device)
        return [function(weight, torch.randn(4, 5, 3).to(device)) for _ in range(3)]

    same_on_both(run)


OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9, "nesterov": True},
    "Adam": {"amsgrad": True},
    "AdamW": {},
    "Adamax": {},
    "NAdam": {},
    "RAdam": {},
    "RMSprop": {"centered": True, "momentum": 0.5},
    "Rprop": {},
    "Adagrad": {},
    "Adadelta": {},
    "ASGD": {},
}


@pytest.mark.parametrize("is_foreach", [True, False], ids=["foreach", "one by one"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_compiled_optimizer_makes_the_steps_of_aot_eager(name: str, is_foreach: bool) -> None:
    def run(device: str) -> list[Tensor]:
        weights = [nn.Parameter(torch.randn(3, i + 1).to(device)) for i in range(3)]
        optimizer = getattr(torch.optim, name)(weights, foreach=is_foreach, **OPTIMIZERS[name])
        step = compiled(optimizer.step, device)
        for _ in range(3):
            for weight in weights:
                weight.grad = torch.randn(weight.shape).to(device)
            step()
        return [weight.detach() for weight in weights]

    same_on_both(run)


@pytest.mark.parametrize("options", [{"capturable": True}, {"fused": True}], ids=str)
def test_a_compiled_optimizer_can_be_capturable_or_fused(options: dict[str, bool]) -> None:
    def run(device: str, wrap: bool) -> list[Tensor]:
        weights = [nn.Parameter(torch.full((3,), i + 1.0).to(device)) for i in range(3)]
        optimizer = torch.optim.AdamW(weights, lr=0.1, **options)
        step = torch.compile(optimizer.step) if wrap else optimizer.step
        for _ in range(4):
            for weight in weights:
                weight.grad = torch.full_like(weight, 0.5)
            step()
        return [weight.detach() for weight in weights]

    for one, other in zip(run(DEVICE, True), run(DEVICE, False), strict=True):
        assert one.tolist() == pytest.approx(other.tolist(), rel=1e-5)  # compiled, Adam rounds


def test_an_exception_between_forward_and_backward_leaves_no_trace() -> None:
    model = nn.Linear(2, 2).to(DEVICE)
    step = torch.compile(model)
    x = torch.ones(1, 2, device=DEVICE)
    for attempt in range(4):
        with contextlib.suppress(ValueError):
            y = step(x).sum()
            if attempt % 2 == 0:
                raise ValueError
            y.backward()
    assert model.bias.grad is not None
    assert model.bias.grad.tolist() == [2.0, 2.0]


def test_two_threads_share_a_compiled_module() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)).to(DEVICE)
    step = torch.compile(model)
    inputs = [torch.randn(2, 4).to(DEVICE) for _ in range(8)]
    expected = [model(x) for x in inputs]
    step(inputs[0])
    wrong: list[int] = []

    def work(first: int) -> None:
        for _ in range(20):
            for at in range(first, 8, 2):
                if not torch.equal(step(inputs[at]), expected[at]):
                    wrong.append(at)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_copy_of_a_compiled_module_is_compiled_for_itself() -> None:
    model = nn.Linear(2, 2).to(DEVICE)
    step = torch.compile(model)
    x = torch.ones(1, 2, device=DEVICE)
    before = step(x)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.weight.zero_()
    assert torch.equal(torch.compile(other)(x), other(x))
    assert torch.equal(step(x), before)


def test_hooks_of_modules_run_each_time() -> None:
    def run(device: str) -> list[Tensor]:
        model = nn.Sequential(nn.Linear(3, 3), nn.Tanh()).to(device)
        seen: list[Tensor] = []
        model[0].register_forward_hook(lambda module, given, made: made * 2)
        model[0].register_full_backward_hook(lambda module, into, out: seen.append(out[0].clone()))
        function = compiled(model, device)
        for _ in range(3):
            function(torch.randn(2, 3).to(device)).sum().backward()
        return seen

    same_on_both(run)


def test_two_threads_train_one_compiled_module() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)).to(DEVICE)
    step = torch.compile(model)
    weights = list(model.parameters())
    inputs = [torch.randn(2, 4).to(DEVICE) for _ in range(6)]
    step(inputs[0]).sum().backward()

    def gradients(module: Any, x: Tensor) -> list[list[float]]:
        return [each.tolist() for each in torch.autograd.grad(module(x).sum(), weights)]

    expected = [gradients(model, x) for x in inputs]
    wrong: list[int] = []

    def work(first: int) -> None:
        for at in [*range(first, 6, 2)] * 10:
            if gradients(step, inputs[at]) != expected[at]:
                wrong.append(at)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
