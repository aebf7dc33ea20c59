"""`torch_remote.compile_step`: a step of training as one message."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import DEVICE
from sent import payload
from torch import nn

import torch_remote

Tensor = torch.Tensor


def make_step(device: str, **options: Any) -> tuple[Callable[[Tensor, Tensor], Tensor], nn.Module]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), **options)

    def step(x: Tensor, goal: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), goal)
        loss.backward()
        optimizer.step()
        return loss

    return step, model


@pytest.mark.parametrize("options", [{"capturable": True}, {"fused": True}], ids=str)
def test_the_steps_are_those_made_call_by_call(options: dict[str, bool]) -> None:
    batches = [(torch.randn(3, 4).to(DEVICE), torch.randn(3, 2).to(DEVICE)) for _ in range(8)]
    found = []
    for wrap in (lambda step: step, torch_remote.compile_step):
        step, model = make_step(DEVICE, **options)
        step = wrap(step)
        torch.manual_seed(3)
        losses = [step(*batch) for batch in batches]
        found.append([*losses, *model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_a_step_is_one_message() -> None:
    step = torch_remote.compile_step(make_step(DEVICE, fused=True)[0])
    x, goal = torch.randn(3, 4).to(DEVICE), torch.randn(3, 2).to(DEVICE)
    for _ in range(5):
        step(x, goal)
    with torch_remote.count() as counted:
        losses = [step(x, goal) for _ in range(10)]
    assert (counted.calls, counted.syncs) == (10, 0)
    assert payload(lambda: step(x, goal)) < 64
    assert len({loss.item() for loss in losses}) == 10


def train_on_goal(wrap: Callable[[Any], Any], after: Callable[[int, Any], None]) -> list[Tensor]:
    """Ten steps of a model, with something between them."""
    torch.manual_seed(5)
    model = nn.Linear(3, 2).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)

    @wrap
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    found: list[Tensor] = []
    for number in range(14):
        found.append(step(torch.full((4, 3), number / 10, device=DEVICE)))
        after(number, optimizer)
    return [*found, *model.parameters(), *(s["step"] for s in optimizer.state.values())]


def test_a_checkpoint_that_the_optimizer_loads_is_where_it_goes_on() -> None:
    def run(wrap: Callable[[Any], Any]) -> list[Tensor]:
        saved: list[Any] = []

        def after(number: int, optimizer: Any) -> None:
            if number == 2:
                saved.append(copy.deepcopy(optimizer.state_dict()))
            if number in (5, 9):
                optimizer.load_state_dict(copy.deepcopy(saved[0]))

        return train_on_goal(wrap, after)

    expected, found = run(lambda step: step), run(torch_remote.compile_step)
    assert all(map(torch.equal, found, expected))


def test_a_learning_rate_that_is_a_number_may_change() -> None:
    def run(wrap: Callable[[Any], Any]) -> list[Tensor]:
        def after(number: int, optimizer: Any) -> None:
            if number in (2, 6, 11):
                optimizer.param_groups[0]["lr"] *= 0.1

        return train_on_goal(wrap, after)

    expected, found = run(lambda step: step), run(torch_remote.compile_step)
    assert all(map(torch.equal, found, expected))


def test_another_size_begins_anew_and_a_part_of_a_tensor_is_copied() -> None:
    def run(wrap: Callable[[Any], Any]) -> list[Tensor]:
        step, model = make_step(DEVICE, fused=True)
        step = wrap(step)
        torch.manual_seed(1)
        data, goals = torch.randn(20, 4).to(DEVICE), torch.randn(20, 2).to(DEVICE)
        found = []
        for index in range(12):
            size = 3 if index % 4 else 2
            found.append(step(data[index : index + size], goals[index : index + size]))
        return [*found, *model.parameters()]

    for one, other in zip(run(lambda step: step), run(torch_remote.compile_step), strict=True):
        assert torch.equal(one, other)


def test_other_values_that_are_no_tensors_are_recorded_for_themselves() -> None:
    weight = torch.ones(2, device=DEVICE)

    @torch_remote.compile_step
    def scale(x: Tensor, by: float = 1.0) -> dict[str, Tensor | float]:
        weight.mul_(by)
        return {"sum": (x * weight).sum(), "by": by}

    x = torch.ones(2, device=DEVICE)
    for _ in range(5):
        twice, same = scale(x, by=2.0), scale(x)
        assert (twice["by"], same["by"]) == (2.0, 1.0)
        assert isinstance(same["sum"], Tensor) and isinstance(twice["sum"], Tensor)
        assert same["sum"].item() == twice["sum"].item()
    assert weight.tolist() == [32.0, 32.0]


def test_a_tensor_on_the_cpu_is_refused_with_what_to_do() -> None:
    step = torch_remote.compile_step(lambda x: x.to(DEVICE) * 2)
    for _ in range(3):
        step(torch.ones(2))
    with pytest.raises(ValueError, match="move the arguments"):
        step(torch.ones(2))


def test_what_cannot_be_recorded_raises_what_a_graph_raises() -> None:
    step = torch_remote.compile_step(lambda x: x * x.sum().item())
    x = torch.ones(2, device=DEVICE)
    for _ in range(3):
        assert step(x).tolist() == [2.0, 2.0]
    with pytest.raises(torch.AcceleratorError, match="not permitted when stream is capturing"):
        step(x)
    assert (x + 1).tolist() == [2.0, 2.0]


def test_it_is_a_decorator_of_methods_too() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.full((2,), 3.0, device=DEVICE))

        @torch_remote.compile_step
        def gradient(self, x: Tensor) -> Tensor:
            """The gradient."""
            return torch.autograd.grad((self.scale * x).sum(), self.scale)[0]

    assert Model.gradient.__doc__ == "The gradient."
    model = Model()
    for value in range(6):
        x = torch.full((2,), float(value), device=DEVICE)
        assert model.gradient(x).tolist() == [value, value]


def test_compiled_inside_a_step() -> None:
    model = nn.Linear(2, 2).to(DEVICE)
    compiled = torch.compile(model)

    @torch_remote.compile_step
    def step(x: Tensor) -> Tensor:
        return compiled(x).sum()

    x = torch.ones(1, 2, device=DEVICE)
    expected = model(x).sum().item()
    assert [step(x).item() for _ in range(6)] == [expected] * 6


def test_a_gradient_that_is_returned_is_that_of_each_call() -> None:
    weight = torch.ones(2, device=DEVICE, requires_grad=True)

    @torch_remote.compile_step
    def gradient(x: Tensor) -> Tensor:
        weight.grad = None
        (weight * x).sum().backward()
        assert weight.grad is not None
        return weight.grad

    for value in range(6):
        found = gradient(torch.full((2,), float(value), device=DEVICE))
        assert found.tolist() == [value, value]
        assert weight.grad is not None and weight.grad.tolist() == [value, value]


def test_state_that_the_step_makes_can_be_its_argument() -> None:
    def run(wrap: Callable[[Any], Any]) -> list[float]:
        state = [torch.zeros(2, device=DEVICE)]

        @wrap
        def step(x: Tensor, hidden: Tensor) -> Tensor:
            state[0] = torch.tanh(x + hidden)
            return state[0].sum()

        return [step(torch.ones(2, device=DEVICE), state[0]).item() for _ in range(8)]

    assert run(lambda step: step) == run(torch_remote.compile_step)


def test_an_argument_that_requires_a_gradient_is_refused() -> None:
    step = torch_remote.compile_step(lambda x: (x * x).sum())
    x = torch.ones(2, device=DEVICE, requires_grad=True)
    for _ in range(3):
        step(x)
    with pytest.raises(ValueError, match="requires a gradient"):
        step(x)


def test_a_write_into_a_part_of_a_tensor_is_refused() -> None:
    step = torch_remote.compile_step(lambda x: x.add_(1).sum())
    whole, rows = torch.zeros(3, device=DEVICE), torch.zeros(4, 3, device=DEVICE)
    for value in range(1, 7):
        assert step(whole).item() == 3 * value
    with pytest.raises(ValueError, match="part of a larger tensor"):
        step(rows[0])


def test_autocast_is_another_kind() -> None:
    step = torch_remote.compile_step(lambda x: x @ x)
    x = torch.randn(4, 4).to(DEVICE)
    for _ in range(5):
        assert step(x).dtype == torch.float32
        with torch.autocast("remote", dtype=torch.bfloat16):
            assert step(x).dtype == torch.bfloat16


@pytest.mark.parametrize("set_to_none", [True, False])
def test_versions_grow_as_those_of_calls_one_by_one(set_to_none: bool) -> None:
    def versions(wrap: Callable[[Any], Any]) -> list[list[int]]:
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).to(DEVICE)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)

        @wrap
        def step(x: Tensor, count: Tensor) -> Tensor:
            optimizer.zero_grad(set_to_none=set_to_none)
            count[:1].add_(1)
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        count, found = torch.zeros(2, device=DEVICE), []
        for _ in range(7):
            step(torch.randn(5, 3).to(DEVICE), count)
            state = [value for each in optimizer.state.values() for value in each.values()]
            known = [*model.parameters(), *model.buffers(), *state, count]
            found.append([tensor._version for tensor in known])
        return found

    assert versions(torch_remote.compile_step) == versions(lambda step: step)


def test_an_older_graph_notices_that_a_step_has_changed_a_parameter() -> None:
    weight = nn.Parameter(torch.ones(2, device=DEVICE))

    @torch_remote.compile_step
    def step(x: Tensor) -> Tensor:
        with torch.no_grad():
            return weight.mul_(x).sum()

    x = torch.ones(2, device=DEVICE)
    for _ in range(6):
        older = (weight * weight).sum()
        step(x)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            older.backward()
        (weight * weight).sum().backward()
