"""Steps of optimizers that did not happen are taken back, whatever the optimizer keeps."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from failures import bad_gather, too_much
from helpers import DEVICE, assert_same

import torch_remote
from torch_remote import _optimizers


class Fragile(torch.optim.Optimizer):
    """Fails within the step for a large gradient, after it has changed the first weight."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        super().__init__(parameters, {"momentum": 0.5})

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for i, weight in enumerate(self.param_groups[0]["params"]):
            with torch.no_grad():
                update = weight.grad * 0.5
                if i == 1 and FAILING[0]:
                    update = update + too_much(update)
                weight.sub_(update)


FAILING = [False]


def test_training_goes_on_after_an_error_inside_the_optimizer() -> None:
    def run(device: str) -> tuple[object, int]:
        torch.manual_seed(1)
        model = torch.nn.Linear(3, 2).to(device)
        optimizer, caught = Fragile(list(model.parameters())), 0
        for i in range(4):
            FAILING[0] = i == 2
            try:
                optimizer.zero_grad()
                model(torch.full((2, 3), i / 3).to(device)).square().sum().backward()
                optimizer.step()
                model.bias.sum().item()
            except RuntimeError:
                caught += 1
        return model.state_dict(), caught

    expected = run("cpu")
    assert expected[1] == 1
    assert_same(run(DEVICE), expected)


def test_a_step_whose_closure_failed_is_taken_back() -> None:
    def run(device: str) -> object:
        torch.manual_seed(1)
        model = torch.nn.Linear(3, 2).to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1, foreach=True)
        caught = 0
        for i in range(4):
            x = torch.full((2, 3), i / 3).to(device)

            def closure(x: torch.Tensor = x, fails: bool = i in (0, 2)) -> torch.Tensor:
                optimizer.zero_grad()
                loss = (model(x) * (too_much(x) if fails else 1)).square().sum()
                loss.backward()
                return loss

            try:
                optimizer.step(closure).item()
            except RuntimeError:
                caught += 1
        return model.state_dict(), optimizer.state_dict()["state"], caught

    assert_same(run(DEVICE), run("cpu"))


def test_every_optimizer_of_many_has_its_step_taken_back() -> None:
    """One optimizer per parameter, for programs that step within the backward."""
    weights = [torch.nn.Parameter(torch.ones(1, device="remote")) for _ in range(100)]
    optimizers = [torch.optim.Adam([weight]) for weight in weights]

    def step(factor: torch.Tensor | int) -> torch.Tensor:
        loss = (torch.cat(weights) * factor).square().sum()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return loss

    step(1).item()
    with pytest.raises(torch_remote.RemoteError):
        step(bad_gather()).item()
    assert {o.state[w]["step"].item() for o, w in zip(optimizers, weights, strict=True)} == {1}


class Counting(torch.optim.SGD):
    """Counts with Python numbers and with new tensors."""

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        super().step()
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                state["number"] = state.get("number", 0) + 1
                state["tensor"] = state.get("tensor", torch.zeros(())) + 1


def test_counts_of_any_kind_are_taken_back() -> None:
    weights = [torch.nn.Parameter(torch.ones(2, device="remote")) for _ in range(2)]
    optimizer = Counting(weights, lr=0.1)

    def step(factor: torch.Tensor | int) -> torch.Tensor:
        optimizer.zero_grad()
        loss = (weights[0] * weights[1] * factor).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(2):
        step(1).item()
    with pytest.raises(torch_remote.RemoteError):
        step(bad_gather()).item()
    assert [(s["number"], s["tensor"].item()) for s in optimizer.state.values()] == [(2, 2)] * 2
    # Another parameter of the same shape: nothing is noted for it.
    optimizer.param_groups[0]["params"][1] = weights[1] = torch.nn.Parameter(weights[1].detach())
    step(1).item()


def test_an_upload_behind_a_failure_is_not_made() -> None:
    weight = torch.nn.Parameter(torch.ones(2, device="remote"))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    written, added = (torch.zeros(3, device="remote") for _ in range(2))
    torch_remote.synchronize()
    with pytest.raises(torch_remote.RemoteError):
        loss = (weight * bad_gather()).square().sum()
        loss.backward()
        optimizer.step()
        written.copy_(torch.full((3,), 7.0))
        added.add_(1)
        added.copy_(torch.full((3,), 7.0))
        loss.item()
    assert written.tolist() == added.tolist() == [0, 0, 0]


class Odd(torch.optim.SGD):
    """Has more in its state than PyTorch's own: keys that are not parameters, no dictionary."""

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        self.state["all"] = torch.zeros(3)
        self.state[self.param_groups[0]["params"][0]] = torch.zeros(2)


def test_an_optimizer_whose_state_is_like_no_other_makes_its_steps() -> None:
    weight = torch.nn.Parameter(torch.ones(2, device="remote"))
    optimizer = Odd([weight], lr=1)
    for _ in range(3):
        optimizer.step()
    with pytest.raises(torch_remote.RemoteError):
        bad_gather().item()
    assert set(optimizer.state) == {"all", weight}


def test_the_counters_that_an_optimizer_keeps_in_its_groups_are_taken_back() -> None:
    """As schedule-free optimizers do. Changes that others make in a group stay."""

    class ScheduleFree(torch.optim.SGD):
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            super().step()
            for group in self.param_groups:
                group["k"] = group.get("k", 0) + 1
                group["weight_sum"] = group.get("weight_sum", 0.0) + group["lr"]

    weight = torch.nn.Parameter(torch.ones(2, device="remote"))
    optimizer = ScheduleFree([weight], lr=0.5)

    def step(factor: torch.Tensor | int) -> None:
        optimizer.zero_grad()
        loss = (weight * factor).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.param_groups[0]["lr"] = 0.25
        loss.item()

    step(1)
    with pytest.raises(torch_remote.RemoteError):
        step(bad_gather())
    group = optimizer.param_groups[0]
    assert (group["k"], group["weight_sum"], group["lr"]) == (1, 0.5, 0.25)


def test_lbfgs_goes_on_after_a_closure_that_failed() -> None:
    def run(device: str) -> object:
        torch.manual_seed(1)
        model = torch.nn.Linear(3, 2).to(device)
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3, history_size=4)
        caught = 0
        for i in range(5):
            x = torch.full((2, 3), (i + 1) / 3).to(device)

            def closure(x: torch.Tensor = x, fails: bool = i in (0, 2)) -> torch.Tensor:
                optimizer.zero_grad()
                loss = (model(x) * (too_much(x) if fails else 1)).square().sum()
                loss.backward()
                return loss

            try:
                optimizer.step(closure)
                torch.ones(1, device=device).item()
            except RuntimeError:
                caught += 1
        return model.state_dict(), caught

    assert_same(run(DEVICE), run("cpu"))


def test_a_scaler_whose_optimizer_failed_in_its_step_is_as_locally() -> None:
    def run(device: str) -> object:
        torch.manual_seed(1)
        model = torch.nn.Linear(3, 2).to(device)
        optimizer = Fragile(list(model.parameters()))
        scaler = torch.amp.GradScaler(device, init_scale=8.0)
        caught = []
        for i in range(4):
            FAILING[0] = i == 1
            try:
                optimizer.zero_grad()
                scaler.scale(model(torch.full((2, 3), i / 3).to(device)).square().sum()).backward()
                scaler.unscale_(optimizer)
                scaler.step(optimizer)
                torch.ones(1, device=device).item()
                scaler.update()
            except RuntimeError:
                caught.append(i)
        return model.state_dict(), caught

    assert_same(run(DEVICE), run("cpu"))


def test_a_step_that_raised_itself_is_forgotten_and_takes_nothing_with_it() -> None:
    weight = torch.nn.Parameter(torch.ones(3, device="remote"))
    optimizer = torch.optim.Adam([weight])

    def refuse() -> torch.Tensor:
        raise KeyError("a mistake of the user's")

    weight.grad = torch.ones(3, device="remote")
    with pytest.raises(KeyError):
        optimizer.step(refuse)
    for _ in range(20):
        optimizer.step()
        torch_remote.synchronize()
    assert len(_optimizers._noted[id(optimizer)][1].all()) <= 2
    bad_gather()
    with pytest.raises(torch_remote.RemoteError):
        for _ in range(100_000):
            optimizer.step()
    assert int(optimizer.state[weight]["step"].item()) >= 20
    optimizer.step()
    assert int(optimizer.state[weight]["step"].item()) >= 21


def test_ctrl_c_while_steps_are_taken_back_does_not_keep_a_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parameter = torch.nn.Parameter(torch.ones(3, 3, device=DEVICE))
    optimizer = torch.optim.Adam([parameter])
    restore, interrupts = _optimizers._restore_optimizer, [KeyboardInterrupt]

    def interrupted(found: torch_remote._C.FoundState, owner: object) -> Iterator[Exception]:
        if interrupts:
            raise interrupts.pop()
        return restore(found, owner)

    monkeypatch.setattr(_optimizers, "_restore_optimizer", interrupted)
    parameter.grad = torch.ones_like(parameter)
    session, call = torch_remote._C.call_number(0)
    optimizer.step()
    assert optimizer.state
    with pytest.raises(KeyboardInterrupt):
        _optimizers._take_back(session, call)
    assert not optimizer.state
