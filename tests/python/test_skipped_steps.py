"""Training after an error was caught: steps that were skipped are taken back, and all is as in a local run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from failures import SIZES, bad_gather, bad_index, too_much
from helpers import DEVICE, assert_same

import torch_remote


class FailsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(context: torch.autograd.function.FunctionCtx, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(context: torch.autograd.function.FunctionCtx, *gradients: torch.Tensor) -> object:
        return gradients[0] * too_much(gradients[0])


FAILURES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "out_of_memory_in_forward": lambda x: x * too_much(x),
    "bad_index_in_forward": lambda x: x * bad_index(x),
    "error_in_backward": FailsInBackward.apply,
}

OPTIMIZERS: dict[str, Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "sgd_one_by_one": lambda parameters: torch.optim.SGD(
        parameters, lr=0.1, momentum=0.9, foreach=False
    ),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),  # counts steps on the CPU
    "adamw_one_by_one": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, foreach=False),
    "fused_adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01, fused=True),
    "nadam": lambda parameters: torch.optim.NAdam(parameters, lr=0.01, foreach=True),
    "rprop": lambda parameters: torch.optim.Rprop(parameters, lr=0.01),
}


def train(
    device: str,
    make_optimizer: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer],
    fail: Callable[[torch.Tensor], torch.Tensor],
) -> tuple[list[float], object, int]:
    """Six steps; a large batch fails, and is tried again as a small one. The loss is read at the end of a step.

    The first step fails, in which an optimizer makes its state, and a later one.
    """
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1))
    model.to(device)
    optimizer = make_optimizer(list(model.parameters()))
    losses, caught = [], 0

    def step(batch: int, seed: int) -> float:
        generator = torch.Generator().manual_seed(seed)
        optimizer.zero_grad()
        hidden = model[1](model[0](torch.randn(batch, 5, generator=generator).to(device)))
        if batch == 4:
            hidden = fail(hidden)
        loss = model[2](hidden).square().mean()
        loss.backward()
        optimizer.step()
        value = loss.item()
        model[0].weight.sum().item()  # of a backward that has failed the loss tells nothing
        return value

    for i in range(6):
        try:
            losses.append(step(4 if i in (0, 3) else 2, i))
        except (RuntimeError, IndexError):
            caught += 1
            losses.append(step(2, i))
    return losses, [model.state_dict(), optimizer.state_dict()["state"]], caught


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("failure", FAILURES)
def test_training_goes_on_with_the_weights_of_a_local_run(failure: str, optimizer: str) -> None:
    expected = train("cpu", OPTIMIZERS[optimizer], FAILURES[failure])
    assert expected[2] == 2
    if DEVICE != "cpu":
        assert_same(train(DEVICE, OPTIMIZERS[optimizer], FAILURES[failure]), expected)


def test_a_step_of_which_the_forward_failed_does_not_happen_though_its_gradients_need_no_value() -> (
    None
):
    """The gradient of `linear(x).sum()` is the input: no call of the backward reads what failed."""

    def run(device: str) -> object:
        torch.manual_seed(1)
        model = torch.nn.Linear(3, 2).to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        caught = 0
        for i in range(4):
            x = torch.full((2, 3), i / 3).to(device)
            try:
                optimizer.zero_grad()
                loss = (model(x) + (too_much(x) if i in (0, 2) else 0)).sum()
                loss.backward()
                optimizer.step()
                loss.item()
            except RuntimeError:
                caught += 1
        return model.state_dict(), optimizer.state_dict()["state"], caught

    assert_same(run(DEVICE), run("cpu"))


def test_what_was_written_with_a_skipped_step_is_undone_with_it() -> None:
    """A counter on the device, as BatchNorm's, reads nothing of what failed and is counted."""
    model = torch.nn.Linear(3, 2).to("remote")
    optimizer = torch.optim.Adam(model.parameters())
    count = torch.zeros((), device="remote")
    loss = model(torch.ones(2, 3, device="remote") * bad_gather()).square().mean()
    loss.backward()
    optimizer.step()
    count += 1
    with pytest.raises(torch_remote.RemoteError):
        loss.item()
    assert count.item() == 0
    assert len(optimizer.state) == 0
    assert model.weight.grad is None


def test_a_step_that_went_well_stays_though_something_else_has_failed_before_it() -> None:
    model = torch.nn.Linear(3, 2).to("remote")
    optimizer = torch.optim.Adam(model.parameters())
    metric = bad_gather()
    count = torch.zeros((), device="remote")
    model(torch.ones(2, 3, device="remote")).square().mean().backward()
    before = model.weight.detach().clone()
    optimizer.step()
    count += 1
    with pytest.raises(torch_remote.RemoteError):
        metric.item()
    assert count.item() == 1
    assert not torch.equal(model.weight, before)
    assert [state["step"].item() for state in optimizer.state.values()] == [1, 1]
    assert model.weight.grad is not None


def test_a_failure_before_a_dropout_and_a_batch_norm_leaves_their_state_as_locally() -> None:
    """The mask of a dropout and the count of batches read nothing of what failed."""

    def run(device: str) -> object:
        torch.manual_seed(3)
        table, norm = torch.nn.Embedding(9, 4).to(device), torch.nn.BatchNorm1d(4).to(device)
        optimizer = torch.optim.Adam([*table.parameters(), *norm.parameters()], foreach=True)
        torch.manual_seed(4)  # the weights are made on the CPU, and by its generator
        seen, caught = [], 0
        for i in range(4):
            fails = i in (0, 2)
            index = torch.full((next(SIZES) if fails else 5,), 77 if fails else 2).to(device)
            try:
                optimizer.zero_grad()
                loss = torch.nn.functional.dropout(norm(table(index)), 0.5).square().sum()
                loss.backward()
                optimizer.step()
                seen.append(loss.item())
            except IndexError:
                caught += 1
        states = [table.state_dict(), norm.state_dict(), optimizer.state_dict()["state"]]
        return seen, caught, states, torch.rand(3, device=device)

    assert_same(run(DEVICE), run("cpu"))


def test_of_two_optimizers_only_the_step_that_was_skipped_is_taken_back() -> None:
    good, bad = (torch.nn.Linear(3, 2).to("remote") for _ in range(2))
    optimizers = [torch.optim.Adam(model.parameters()) for model in (good, bad)]
    x = torch.ones(2, 3, device="remote")
    for _ in range(2):
        for model, optimizer in zip((good, bad), optimizers, strict=True):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    for model, optimizer in zip((good, bad), optimizers, strict=True):
        optimizer.zero_grad()
        model(x * (bad_gather() if model is bad else 1)).square().mean().backward()
        optimizer.step()
    with pytest.raises(torch_remote.RemoteError):
        bad.weight.sum().item()
    counts = [[s["step"].item() for s in optimizer.state.values()] for optimizer in optimizers]
    assert counts == [[3, 3], [2, 2]]


class Fragile(torch.optim.Optimizer):
    """Fails in the middle of the step for a large gradient, behind the first weight that it has changed."""

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
    """One for each parameter, as programs have that step within the backward."""
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
    """Counts with numbers of Python and with tensors that it makes anew."""

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
    # A parameter of the same form in the place of another: what is noted of it is nothing.
    optimizer.param_groups[0]["params"][1] = weights[1] = torch.nn.Parameter(weights[1].detach())
    step(1).item()


def test_an_upload_behind_a_failure_is_undone_with_the_skipped_step() -> None:
    weight = torch.nn.Parameter(torch.ones(2, device="remote"))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    written, added = (torch.zeros(3, device="remote") for _ in range(2))
    torch_remote.synchronize()
    loss = (weight * bad_gather()).square().sum()
    loss.backward()
    optimizer.step()
    written.copy_(torch.full((3,), 7.0))
    added.add_(1)
    added.copy_(torch.full((3,), 7.0))
    with pytest.raises(torch_remote.RemoteError):
        loss.item()
    assert written.tolist() == added.tolist() == [0, 0, 0]


def test_what_was_seen_since_a_failure_is_not_undone_wherever_it_was_written() -> None:
    weight = torch.nn.Parameter(torch.ones(2, device="remote"))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    count = torch.zeros((), device="remote")
    seen = torch.empty((), device="remote")  # has its name before the failure, and memory after it
    loss = (weight * bad_gather()).square().sum()
    loss.backward()
    optimizer.step()
    count += 1
    torch.add(count, 0, out=seen)
    assert seen.item() == 1
    with pytest.raises(torch_remote.RemoteError):
        loss.item()
    assert count.item() == 1


class Odd(torch.optim.SGD):
    """Keeps things in its state that PyTorch's own do not: no dictionary, keys that are no parameters."""

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
