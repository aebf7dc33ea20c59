"""Optimizers: five steps leave the CPU's weights and state, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import DEVICE, assert_same
from torch import nn

import torch_remote

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p, **how: torch.optim.SGD(p, lr=0.1, **how),
    "sgd_momentum": lambda p, **how: torch.optim.SGD(
        p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01, **how
    ),
    "adam": lambda p, **how: torch.optim.Adam(p, lr=0.01, **how),
    "adam_amsgrad": lambda p, **how: torch.optim.Adam(p, lr=0.01, amsgrad=True, **how),
    "adamw": lambda p, **how: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1, **how),
    "adagrad": lambda p, **how: torch.optim.Adagrad(p, lr=0.01, **how),
}
OTHERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "rmsprop": lambda p, **how: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, **how),
    "adadelta": lambda p, **how: torch.optim.Adadelta(p, **how),
    "adamax": lambda p, **how: torch.optim.Adamax(p, **how),
    "nadam": lambda p, **how: torch.optim.NAdam(p, **how),
    "radam": lambda p, **how: torch.optim.RAdam(p, **how),
    "rprop": lambda p, **how: torch.optim.Rprop(p, **how),
    "asgd": lambda p, **how: torch.optim.ASGD(p, **how),
}
HOW: dict[str, dict[str, bool]] = {
    "for_loop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}


def train(
    device: str,
    make: Callable[..., torch.optim.Optimizer],
    how: dict[str, bool],
    change: Callable[[int, nn.Module, torch.optim.Optimizer], None] | None = None,
) -> dict[str, Any]:
    """Five steps from the same start. Gives weights, losses and the optimizer's tensors."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 3)).to(device)
    x, y = torch.randn(16, 6).to(device), torch.randint(3, (16,)).to(device)
    optimizer = make(model.parameters(), **how)
    losses = []
    for step in range(5):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        if change is not None:
            change(step, model, optimizer)
        optimizer.step()
        losses.append(loss.detach())
    state = optimizer.state_dict()["state"]
    return {"losses": losses, "weights": dict(model.state_dict()), "state": dict(state)}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("how", HOW)
def test_five_steps_match_the_cpu(name: str, how: str) -> None:
    if name == "adagrad" and how == "fused" and DEVICE != "cpu":
        pytest.skip("PyTorch allows fused Adagrad on the CPU only")
    expected = train("cpu", OPTIMIZERS[name], HOW[how])
    assert_same(train(DEVICE, OPTIMIZERS[name], HOW[how]), expected)


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("how", ["for_loop", "foreach"])
def test_five_steps_of_the_others_match_the_cpu(name: str, how: str) -> None:
    expected = train("cpu", OTHERS[name], HOW[how])
    assert_same(train(DEVICE, OTHERS[name], HOW[how]), expected)


@pytest.mark.parametrize("how", HOW)
def test_clipping_and_a_schedule_match_the_cpu(how: str) -> None:
    def change(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.1, foreach=True)
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * (step + 1)

    expected = train("cpu", OPTIMIZERS["adamw"], HOW[how], change)
    assert_same(train(DEVICE, OPTIMIZERS["adamw"], HOW[how], change), expected)


@pytest.mark.parametrize("how", HOW)
def test_a_step_without_a_read_waits_for_nothing(how: str) -> None:
    model = nn.Linear(4, 4, device="remote")
    optimizer = torch.optim.AdamW(model.parameters(), **HOW[how])
    x = torch.ones(2, 4, device="remote")

    def step() -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    step()
    with torch_remote.count() as counted:
        step()
    assert counted.syncs == 0


def test_adamw_sends_a_fixed_number_of_calls() -> None:
    parameters = [torch.ones(3, 3, device="remote", requires_grad=True) for _ in range(50)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.AdamW(parameters)
    optimizer.step()
    with torch_remote.count() as counted:
        optimizer.step()
    assert counted.calls <= 16


def test_a_schedule_sends_no_new_signatures() -> None:
    model = nn.Linear(4, 4, device="remote")
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
    x = torch.ones(2, 4, device="remote")

    def step() -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        schedule.step()

    for _ in range(3):
        step()
    with torch_remote.count() as counted:
        for _ in range(5):
            step()
    assert counted.signatures_sent == 0
