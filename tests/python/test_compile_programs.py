"""Graphs of `torch.compile` are programs of the server: what they compute, and what that costs."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from compile_parts import (  # noqa: F401
    compiled,
    every_graph_is_a_program,
    forget_what_was_compiled,
    same_on_both,
)
from failures import held_server
from helpers import DEVICE, same
from sent import payload
from torch import nn

import torch_remote

Tensor = torch.Tensor


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout(),
        nn.Flatten(),
        nn.LazyLinear(3),
    )


def train(device: str, steps: int = 4, **options: Any) -> list[Tensor]:
    model = network().eval()
    model(torch.zeros(2, 2, 6, 6))
    model.to(device).train()
    step = compiled(model, device, **options)
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    batches = torch.randn(steps, 4, 2, 6, 6)  # before the CPU's generator draws for dropout
    torch.manual_seed(1)
    for index, batch in enumerate(batches.to(device)):
        loss = step(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=index % 2 == 0)
        losses.append(loss.detach())
    return [*losses, *model.state_dict().values()]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"backend": "inductor"},
        {"mode": "max-autotune"},
        {"mode": "reduce-overhead"},
        {"options": {"max_autotune": True}},
        {"fullgraph": True},
        {"dynamic": True},
    ],
    ids=str,
)
def test_training_is_that_of_aot_eager(options: dict[str, Any], no_line: None) -> None:
    same_on_both(lambda device: train(device, **options))


def test_forward_and_backward_are_one_message_each(no_line: None) -> None:
    layer = nn.Sequential(*[nn.Linear(8, 8) for _ in range(10)]).to(DEVICE)
    run = torch.compile(layer)
    x = torch.randn(4, 8).to(DEVICE)
    for _ in range(2):
        run(x).backward(torch.ones_like(x))
    gradient = torch.ones_like(x)
    with torch_remote.count() as counted:
        y = run(x)
    assert (counted.calls, counted.syncs) == (1, 0)
    for parameter in layer.parameters():
        parameter.grad = None
    with torch_remote.count() as counted:
        y.backward(gradient)
    assert (counted.calls, counted.syncs) == (1, 0)


@pytest.mark.parametrize("sizes", [[3, 5, 3, 7, 5, 2], [4, 4, 1, 4]])
def test_sizes_change(sizes: list[int], no_line: None) -> None:
    def run(device: str) -> list[Tensor]:
        weight = torch.randn(4, 4).to(device).requires_grad_()
        function = compiled(lambda x: (x @ weight).softmax(-1) * x.shape[0], device)
        found = []
        for size in sizes:
            y = function(torch.randn(size, 4).to(device))
            y.square().sum().backward()
            found.append(y.detach())
        return [*found, weight.grad]

    same_on_both(run)


def test_a_layout_that_only_the_server_knows_is_learnt_before_the_recording(no_line: None) -> None:
    model = nn.Conv2d(3, 4, 3).to(DEVICE)
    step = torch.compile(model)
    image = torch.randn(2, 3, 5, 5).to(DEVICE).to(memory_format=torch.channels_last)
    for _ in range(4):
        y = step(image)
        gradient = torch.ones_like(y)
        with torch_remote.count() as counted:
            (found,) = torch.autograd.grad(y, model.weight, gradient)
    assert (counted.calls, counted.syncs) == (1, 0)
    here = copy.deepcopy(model).cpu()
    (expected,) = torch.autograd.grad(here(image.cpu()), here.weight, gradient.cpu())
    assert same(found.cpu(), expected)


def test_random_operators_draw_what_eager_draws(no_line: None) -> None:
    def function(x: Tensor) -> Tensor:
        return nn.functional.dropout(x, 0.5) + torch.randn_like(x) + torch.rand(3, device=x.device)

    step = torch.compile(function)
    x = torch.ones(3, device=DEVICE)
    torch.manual_seed(5)
    found = [step(x) for _ in range(4)]
    torch.manual_seed(5)
    for value in found:
        assert torch.equal(value, function(x))


def test_a_run_has_the_settings_of_its_call() -> None:
    function = torch.compile(lambda x: x * 2)
    x = torch.ones(2, device=DEVICE)
    function(x)
    before = torch.backends.cudnn.benchmark
    try:
        torch.backends.cudnn.benchmark = not before  # Dynamo does not look at it
        assert payload(lambda: function(x)) > 60  # a program that begins with it
        assert payload(lambda: function(x)) < 40
    finally:
        torch.backends.cudnn.benchmark = before
    with torch_remote.count() as counted:
        assert function(x).tolist() == [2.0, 2.0]
    assert counted.calls == 1


def test_an_error_inside_names_the_operator_and_the_program_goes_on() -> None:
    step = torch.compile(lambda x, at: x.gather(0, at) * 2)
    x = torch.ones(3, device=DEVICE)
    good, bad = torch.tensor([1], device=DEVICE), torch.tensor([7], device=DEVICE)
    assert step(x, good).item() == 2.0
    with held_server():
        failed = step(x, bad)
    with pytest.raises(torch_remote.RemoteError, match="aten::gather"):
        failed.item()
    assert step(x, good).item() == 2.0


def test_in_a_graph_the_calls_of_a_compiled_function_are_recorded() -> None:
    step = torch.compile(lambda x: x * 2 + 1)
    x = torch.ones(2, device=DEVICE)
    step(x)
    graph = torch_remote.Graph()
    with graph:
        y = step(x)
    x.fill_(5)
    graph.replay()
    assert y.tolist() == [11.0, 11.0]


def test_an_error_in_a_backward_names_the_operator_and_the_program_goes_on() -> None:
    def step(x: Tensor, at: Tensor) -> Tensor:
        return x[at].square().sum()

    x = torch.ones(3, device=DEVICE, requires_grad=True)
    good, bad = torch.tensor([1], device=DEVICE), torch.tensor([7], device=DEVICE)
    function = torch.compile(step)
    for _ in range(2):
        torch.autograd.grad(function(x, good), x)
    at = good.clone()
    loss = function(x, at)
    at.data.copy_(bad)  # autograd does not notice it
    with held_server():
        (failed,) = torch.autograd.grad(loss, x)
    with pytest.raises(torch_remote.RemoteError, match="index_put"):
        failed.tolist()
    assert torch.autograd.grad(function(x, good), x)[0].tolist() == [0.0, 2.0, 0.0]
