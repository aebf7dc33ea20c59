"""After an error was raised the program goes on as it would locally: poison, skipped calls and healing."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from helpers import DEVICE, assert_same

import torch_remote

SIZES = itertools.count(1000)  # no other file's: a signature that failed once is waited for


def bad_gather() -> torch.Tensor:
    """One element that only the server can refuse. Each is a new signature, so that none is waited for."""
    source = torch.ones(next(SIZES), device="remote")
    return torch.gather(source, 0, torch.tensor([10**6], device="remote"))


def too_much(x: torch.Tensor) -> torch.Tensor:
    """More than the address space of any process."""
    return x.flatten()[0].expand(2**45).clone().sum()


def bad_index(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.embedding(torch.tensor([7], device=x.device), x).sum()


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
    "sgd_one_by_one": lambda parameters: torch.optim.SGD(parameters, lr=0.1, foreach=False),
    # Its count of steps is on the device; one on the CPU goes on counting steps that are skipped (docs/errors.md).
    "fused_adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01, fused=True),
}


def train(
    device: str,
    make_optimizer: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer],
    fail: Callable[[torch.Tensor], torch.Tensor],
) -> tuple[list[float], object, int]:
    """Six steps; a large batch fails, and is tried again as a small one. The loss is read at the end of a step."""
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
        return loss.item()

    for i in range(6):
        try:
            losses.append(step(4 if i in (2, 3) else 2, i))
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


def test_a_weight_whose_update_was_skipped_raises_the_cause_once_and_is_then_as_before() -> None:
    weight = torch.ones(1, device="remote")
    weight.add_(bad_gather())
    with pytest.raises(torch_remote.RemoteError, match="aten::gather"):
        weight.tolist()
    assert weight.tolist() == [1.0]


def test_a_call_that_reads_a_skipped_weight_is_skipped_too() -> None:
    weight, other = torch.ones(1, device="remote"), torch.ones(1, device="remote")
    weight.add_(bad_gather())
    other.add_(weight)
    made = weight * 2
    with pytest.raises(torch_remote.RemoteError, match="aten::gather"):
        other.tolist()
    assert (weight.tolist(), other.tolist()) == ([1.0], [1.0])
    with pytest.raises(torch_remote.RemoteError, match="aten::gather"):
        made.tolist()  # it was never made, and says why each time


def test_of_two_failures_each_is_raised_and_heals_what_it_kept_from_running() -> None:
    first, second = bad_gather(), bad_gather().reshape(1, 1)
    a, b = torch.ones(1, device="remote"), torch.ones(1, 1, device="remote")
    a.add_(first)
    b.add_(second)
    with pytest.raises(torch_remote.RemoteError):
        second.tolist()
    assert b.tolist() == [[1.0]]
    with pytest.raises(torch_remote.RemoteError):
        a.tolist()
    assert a.tolist() == [1.0]


def test_what_the_program_has_seen_since_a_failure_is_not_undone() -> None:
    weight = torch.zeros(1, device="remote")
    bad = bad_gather()
    weight.add_(1)
    assert weight.tolist() == [1.0]
    weight.add_(bad)
    with pytest.raises(torch_remote.RemoteError, match="aten::gather"):
        weight.tolist()
    assert weight.tolist() == [1.0]


def test_an_older_failure_that_nobody_read_does_not_leave_an_update_half_done() -> None:
    momentum = torch.ones(1, device="remote")
    ignored, bad = bad_gather(), bad_gather()
    momentum.mul_(0.5)
    momentum.add_(bad)
    with pytest.raises(torch_remote.RemoteError):
        bad.tolist()
    assert momentum.tolist() == [1.0]
    with pytest.raises(torch_remote.RemoteError):
        ignored.tolist()


def test_calls_run_when_there_is_no_room_to_keep_what_they_write() -> None:
    large = [torch.zeros(40 << 20, dtype=torch.uint8, device="remote") for _ in range(8)]
    bad = bad_gather()
    for tensor in large:
        tensor.add_(1)
    with pytest.raises(torch_remote.RemoteError, match="aten::gather"):
        bad.tolist()
    assert [tensor[0].item() for tensor in large] == [1] * 8


def test_what_the_failing_call_was_to_write_stays_poisoned_until_it_is_overwritten() -> None:
    target = torch.ones(next(SIZES), device="remote")
    target.index_fill_(0, torch.tensor([10**6], device="remote"), 2)
    for _ in range(2):
        with pytest.raises(torch_remote.RemoteError, match="index_fill_"):
            target.tolist()
    target.fill_(3)
    assert set(target.tolist()) == {3.0}


@pytest.mark.parametrize(
    "overwrite", [torch._foreach_zero_, lambda all: torch._foreach_copy_(all, [all[0] * 0] * 2)]
)
def test_a_list_that_is_overwritten_whole_is_good_again(
    overwrite: Callable[[list[torch.Tensor]], object],
) -> None:
    good, bad = torch.ones(1, device="remote"), bad_gather()
    overwrite([good, bad])
    assert (good.tolist(), bad.tolist()) == ([0.0], [0.0])
    with pytest.raises(torch_remote.RemoteError):
        torch.remote.synchronize()  # all the same, it was not raised


def test_a_skipped_call_does_not_advance_the_generator() -> None:
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    skipped = torch.bernoulli(bad_gather())
    drawn = torch.rand(2, device="remote")
    with pytest.raises(torch_remote.RemoteError):
        skipped.tolist()
    assert_same(drawn.cpu(), expected)


def test_synchronize_raises_every_failure_that_nobody_has_read_once() -> None:
    torch.remote.synchronize()
    kept = [bad_gather(), bad_gather()]
    with pytest.raises(torch_remote.RemoteError, match="1 more failed"):
        torch.remote.synchronize()
    with pytest.raises(torch_remote.RemoteError) as last:
        torch.remote.synchronize()
    assert "more failed" not in str(last.value)
    torch.remote.synchronize()
    del kept
