"""Training after a caught error: steps that did not happen are taken back, as locally."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
import torch
from failures import SIZES, bad_gather, bad_index, too_much
from helpers import DEVICE, assert_runs, assert_same

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
