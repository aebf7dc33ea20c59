"""Whole training steps as a graph, as PyTorch's documentation writes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from graphing import recorded
from helpers import assert_same

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, capturable=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, capturable=True, amsgrad=True),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.01, capturable=True),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01, capturable=True),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.01, capturable=True),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.01, capturable=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, capturable=True),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.01, capturable=True),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=0.01, capturable=True),
    "fused adam": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
}


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 12), torch.nn.BatchNorm1d(12), torch.nn.Dropout(0.3), torch.nn.GELU(),
        torch.nn.Linear(12, 3),
    )  # fmt: skip


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_training_step_replayed_equals_the_steps_made_eagerly(name: str) -> None:
    """As PyTorch's documentation writes it: warm up, capture, fill the inputs, replay."""
    torch.manual_seed(1)
    batches = [(torch.randn(5, 6), torch.randint(3, (5,))) for _ in range(8)]

    def train(use_graph: bool) -> Any:
        model = network().to("remote")
        optimizer = OPTIMIZERS[name](model.parameters())
        x, goal = batches[0][0].to("remote"), batches[0][1].to("remote")
        torch.remote.manual_seed(2)
        losses = []

        def step() -> torch.Tensor:
            optimizer.zero_grad(set_to_none=False)
            loss = torch.nn.functional.cross_entropy(model(x), goal)
            loss.backward()
            optimizer.step()
            return loss

        for _ in range(3):
            step()
        if use_graph:
            graph, loss = recorded(step)
        for ours, theirs in batches:
            x.copy_(ours)
            goal.copy_(theirs)
            if use_graph:
                graph.replay()
            else:
                loss = step()
            losses.append(loss.detach().clone())
        return losses, list(model.parameters()), list(model.buffers())

    replayed, eager = train(True), train(False)
    for ours, theirs in zip(replayed, eager, strict=True):
        assert_same([each.cpu() for each in ours], [each.cpu() for each in theirs])
    assert not torch.equal(eager[0][0].cpu(), eager[0][-1].cpu())


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_step_with_checkpoints_draws_the_same_numbers_when_it_computes_again(
    reentrant: bool,
) -> None:
    def train(use_graph: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        inner = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Dropout(0.5), torch.nn.GELU())
        model = torch.nn.Sequential(torch.nn.Linear(6, 6), inner).to("remote")
        x = torch.ones(5, 6, device="remote")
        torch.remote.manual_seed(2)

        def step() -> torch.Tensor:
            model.zero_grad(set_to_none=False)
            hidden = model[0](x)
            y = torch.utils.checkpoint.checkpoint(inner, hidden, use_reentrant=reentrant)
            loss = y.square().sum()
            loss.backward()
            return loss

        step()
        graph, loss = recorded(step) if use_graph else (None, None)
        taken = []
        for _ in range(3):
            if graph is None:
                loss = step()
            else:
                graph.replay()
            taken += [loss.detach().cpu(), *(each.grad.cpu() for each in model.parameters())]
        return taken

    replayed, eager = train(True), train(False)
    assert_same(replayed, eager)
    assert not torch.equal(eager[0], eager[5])


def test_gradients_that_a_step_makes_anew_are_those_of_the_capture() -> None:
    model = torch.nn.Linear(3, 1).to("remote")
    x = torch.ones(2, 3, device="remote")

    def step() -> None:
        model.zero_grad(set_to_none=True)
        model(x).sum().backward()

    step()
    graph, _ = recorded(step)
    assert model.weight.grad is not None
    x.fill_(4)
    graph.replay()
    assert model.weight.grad.tolist() == [[8, 8, 8]]
    graph.replay()
    assert model.weight.grad.tolist() == [[8, 8, 8]]
