"""Training after a caught error: steps that did not happen are taken back, as locally."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
import torch
from failures import SIZES, bad_gather, bad_index, too_much
from helpers import DEVICE, assert_runs, assert_same

import torch_remote
from torch_remote import _optimizers


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

Make = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]

# Muon takes matrices only, SparseAdam sparse gradients; LBFGS has its own test.
OPTIMIZERS: dict[str, Make] = {
    # A loop, not foreach, which remote uses by default and which rounds differently.
    name: lambda some, make=make: make(some, lr=0.01, foreach=False)  # type: ignore[misc]
    for name, make in vars(torch.optim).items()
    if isinstance(make, type)
    and issubclass(make, torch.optim.Optimizer)
    and name not in ("Optimizer", "Muon", "SparseAdam", "LBFGS")
} | {
    "SGD with momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "Adam of lists": lambda parameters: torch.optim.Adam(parameters, lr=0.01, foreach=True),
    "Adam fused": lambda parameters: torch.optim.Adam(parameters, lr=0.01, fused=True),
    "NAdam of lists": lambda parameters: torch.optim.NAdam(parameters, lr=0.01, foreach=True),
}


def train(
    device: str,
    make_optimizer: Make,
    fail: Callable[[torch.Tensor], torch.Tensor],
) -> tuple[list[float], object, int]:
    """Six steps; a large batch fails and is tried again as a small one. Each step reads its loss.

    The first step, in which an optimizer makes its state, fails, and a later one.
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
        model[0].weight.sum().item()  # the loss says nothing about a backward that failed
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


def test_a_step_whose_forward_failed_does_not_happen_though_its_gradients_need_no_value() -> None:
    """The gradient of `linear(x).sum()` is the input: the backward does not read what failed."""

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


def test_what_is_written_after_a_failure_is_not_written() -> None:
    """A counter on the device, as in BatchNorm, does not read what failed."""
    model = torch.nn.Linear(3, 2).to("remote")
    optimizer = torch.optim.Adam(model.parameters())
    count = torch.zeros((), device="remote")
    with pytest.raises(torch_remote.RemoteError):
        loss = model(torch.ones(2, 3, device="remote") * bad_gather()).square().mean()
        loss.backward()
        optimizer.step()
        count += 1
        loss.item()
    assert count.item() == 0
    assert len(optimizer.state) == 0
    assert model.weight.grad is None


def test_a_failure_before_a_dropout_and_a_batch_norm_leaves_their_state_as_locally() -> None:
    """A dropout mask and the count of batches do not read what failed."""

    def run(device: str) -> object:
        torch.manual_seed(3)
        table, norm = torch.nn.Embedding(9, 4).to(device), torch.nn.BatchNorm1d(4).to(device)
        optimizer = torch.optim.Adam([*table.parameters(), *norm.parameters()], foreach=True)
        torch.manual_seed(4)  # the CPU's generator draws the weights
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
            except (IndexError, RuntimeError):
                caught += 1
        states = [table.state_dict(), norm.state_dict(), optimizer.state_dict()["state"]]
        return seen, caught, states, torch.rand(3, device=device)

    assert_same(run(DEVICE), run("cpu"))


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


def test_a_gan_whose_discriminator_fails_goes_on_as_locally() -> None:
    def run(device: str) -> object:
        torch.manual_seed(0)
        maker, judge = (torch.nn.Linear(3, 3).to(device) for _ in range(2))
        optimizers = [torch.optim.Adam(each.parameters(), lr=0.1) for each in (maker, judge)]
        caught = 0
        for i in range(5):
            noise = torch.full((2, 3), i / 5).to(device)
            try:
                for optimizer in optimizers:
                    optimizer.zero_grad()
                    judged = judge(maker(noise))
                    if i == 2 and optimizer is optimizers[1]:
                        judged = judged * too_much(judged)
                    judged.square().mean().backward()
                    optimizer.step()
                judged.sum().item()
            except RuntimeError:
                caught += 1
        states = [optimizer.state_dict()["state"] for optimizer in optimizers]
        return maker.state_dict(), judge.state_dict(), states, caught

    assert_same(run(DEVICE), run("cpu"))


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_that_are_gathered_over_batches_are_as_locally(set_to_none: bool) -> None:
    def run(device: str) -> object:
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        caught = 0
        for i in range(4):
            optimizer.zero_grad(set_to_none=set_to_none)
            for k in range(3):
                x = torch.full((2, 3), (i + k) / 3).to(device)
                try:
                    value = model(x)
                    if (i, k) in ((0, 0), (2, 1)):
                        value = value * too_much(value)
                    value.square().mean().backward()
                    x.sum().item()
                except RuntimeError:
                    caught += 1
            optimizer.step()
        return model.state_dict(), optimizer.state_dict()["state"], caught

    assert_same(run(DEVICE), run("cpu"))


def test_batch_norm_behind_the_failure_keeps_its_statistics() -> None:
    def run(device: str) -> object:
        norm = torch.nn.BatchNorm1d(4).to(device)
        for i in range(3):
            x = torch.arange(8.0).reshape(2, 4).to(device)
            with suppress(RuntimeError):
                norm(x * (too_much(x) if i == 1 else 1)).sum().item()
        return norm.state_dict()

    assert_same(run(DEVICE), run("cpu"))


def test_a_grad_scaler_scales_the_gradients_of_the_step_after_a_failure() -> None:
    def run(device: str) -> object:
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler(device, init_scale=64.0, growth_interval=2)
        caught = 0
        for i in range(5):
            x = torch.full((2, 3), i / 5).to(device)
            try:
                optimizer.zero_grad()
                loss = (model(x) * (too_much(x) if i in (0, 2) else 1)).square().mean()
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                loss.item()
            except RuntimeError:
                caught += 1
        return model.state_dict(), scaler.state_dict(), caught

    assert_same(run(DEVICE), run("cpu"))


def test_with_checked_steps_a_failure_is_raised_before_the_step() -> None:
    assert_runs(
        """
        import torch, torch_remote
        weight = torch.nn.Parameter(torch.ones(2, device="remote"))
        optimizer = torch.optim.Adam([weight])
        weight.grad = torch.ones(2, device="remote")
        work = torch.ones(1500, 1500, device="remote") @ torch.ones(1500, 1500, device="remote")
        bad = torch.gather(torch.ones(3, device="remote"), 0, torch.tensor([9], device="remote"))
        try:
            optimizer.step()
        except torch_remote.RemoteError as error:
            assert "aten::gather" in str(error)
        else:
            raise SystemExit("nothing was raised")
        assert len(optimizer.state) == 0
        """,
        TORCH_REMOTE_CHECK_STEPS="1",
    )


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
    notes = _optimizers._notes[optimizer]
    assert len(notes) <= 2
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
    restore, interrupts = _optimizers._Optimizer.restore, [KeyboardInterrupt]

    def interrupted(found: _optimizers._Optimizer, owner: torch.optim.Optimizer) -> None:
        if interrupts:
            raise interrupts.pop()
        restore(found, owner)

    monkeypatch.setattr(_optimizers._Optimizer, "restore", interrupted)
    parameter.grad = torch.ones_like(parameter)
    session, call = torch_remote._C.call_number(0)
    optimizer.step()
    assert optimizer.state
    with pytest.raises(KeyboardInterrupt):
        _optimizers._take_back(session, call)
    assert not optimizer.state
