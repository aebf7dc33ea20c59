"""What a failed call takes back is taken back whole, whatever other tensors and optimizers do."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from failures import bad_gather, held_server
from restoring import assert_taken_back, fail, make_adam, record_unraisable, step  # noqa: F401
from torch.utils._python_dispatch import TorchDispatchMode

import torch_remote

# --- tensors of the program


class Refuses(torch.Tensor):
    """Every operator, method and attribute of it raises."""

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        raise RuntimeError("no function of this tensor may be called")


class RefusesKernels(torch.Tensor):
    @staticmethod
    def __new__(cls) -> RefusesKernels:
        return torch.Tensor._make_wrapper_subclass(cls, (2,), device="remote", requires_grad=True)

    @classmethod
    def __torch_dispatch__(cls, *_: Any, **__: Any) -> Any:
        raise RuntimeError("no kernel of this tensor may be called")


class NotWhatItSeems:
    """As proxies of lazily imported modules do, it runs code when it is asked for its class."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise RuntimeError("nobody may ask for the class")


def broken_view() -> torch.Tensor:
    """Its `is_leaf` raises: `Output 0 of Unbind… is a view and its base … has been modified`."""
    base = torch.ones(3, 2, requires_grad=True).clone()
    first = base.unbind(0)[0]
    base.add_(1)
    with pytest.raises(RuntimeError, match="is a view"):
        first.is_leaf  # noqa: B018
    return first


ODD: dict[str, Callable[[], Any]] = {
    "a broken view": broken_view,
    "a subclass that refuses functions": lambda: torch.ones(2).as_subclass(Refuses),
    "a subclass that refuses kernels": RefusesKernels,
    "an object that refuses its class": NotWhatItSeems,
    "a tensor that was never made": lambda: torch.Tensor.__new__(torch.Tensor),
}


@pytest.mark.parametrize("kind", ODD)
def test_an_odd_tensor_of_the_program_does_not_stop_the_restoration(
    kind: str, unraisable: list[Any]
) -> None:
    odd = [ODD[kind]() for _ in range(3)]
    weight, optimizer = make_adam()
    step(weight, optimizer, 1)
    fail(lambda failed: step(weight, optimizer, failed))
    assert_taken_back(weight, optimizer)
    assert not unraisable
    del odd


def test_leaves_without_an_optimizer_lose_missing_gradients_and_no_others() -> None:
    good, missing, gathered = (torch.ones(2, device="remote", requires_grad=True) for _ in range(3))
    (good.sum() + gathered.sum()).backward()
    fail(lambda failed: ((missing + gathered) * failed).sum().backward())
    assert missing.grad is None
    assert good.grad is not None and good.grad.tolist() == [1, 1]
    assert gathered.grad is not None and gathered.grad.tolist() == [1, 1]


def test_a_missing_sparse_gradient_becomes_none() -> None:
    table = torch.nn.Embedding(4, 2, sparse=True).to("remote")
    index = torch.tensor([1], device="remote")
    fail(lambda failed: (table(index) * failed).sum().backward())
    assert table.weight.grad is None


def test_parameters_that_the_garbage_collector_does_not_list_lose_missing_gradients() -> None:
    weight, optimizer = make_adam()
    step(weight, optimizer, 1)
    gc.collect()
    gc.freeze()
    try:
        fail(lambda failed: step(weight, optimizer, failed))
    finally:
        gc.unfreeze()
    assert_taken_back(weight, optimizer)


def test_under_a_mode_that_refuses_everything_steps_are_taken_back() -> None:
    class RefuseAll(TorchDispatchMode):
        def __torch_dispatch__(self, *_: Any, **__: Any) -> Any:
            raise RuntimeError("no kernel may be called here")

    weight, optimizer = make_adam()
    step(weight, optimizer, 1)
    with held_server():
        bad_gather()
        optimizer.step()
    with RefuseAll(), pytest.raises(torch_remote.RemoteError):
        torch_remote.synchronize()
    assert [int(state["step"]) for state in optimizer.state.values()] == [1]


# --- optimizers of the program


class RefusesToClear(dict[str, Any]):
    def clear(self) -> None:
        raise RuntimeError("this state is not cleared")


class OddState(torch.optim.SGD):
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        super().step()
        for weight in self.param_groups[0]["params"]:
            self.state.setdefault(weight, RefusesToClear())["count"] = 1


class NoState(torch.optim.SGD):
    """An optimizer that has no dictionary of states."""

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        self.state = None  # type: ignore[assignment]


class Equal(torch.optim.SGD):
    """Equal to all others of its class, and without a hash."""

    def __eq__(self, other: object) -> bool:
        return type(other) is Equal

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("kind", [OddState, NoState])
def test_an_odd_optimizer_is_named_and_the_others_are_restored(
    kind: type[torch.optim.SGD], unraisable: list[Any]
) -> None:
    others = [make_adam() for _ in range(2)]
    odd_weight = torch.nn.Parameter(torch.ones(2, device="remote"))
    odd = kind([odd_weight], lr=0.1)
    for weight, optimizer in others:
        step(weight, optimizer, 1)
    odd.step()
    odd.step()

    def work(failed: torch.Tensor) -> None:
        step(*others[0], failed)
        odd.step()
        step(*others[1], failed)

    with pytest.warns(UserWarning, match=f"{kind.__name__} is not wholly restored"):
        fail(work)
    for weight, optimizer in others:
        assert_taken_back(weight, optimizer)
    assert not unraisable


def test_optimizers_that_are_equal_have_notes_of_their_own() -> None:
    weights = [torch.nn.Parameter(torch.ones(2, device="remote")) for _ in range(2)]
    optimizers = [Equal([weight], lr=0.5, momentum=0.5) for weight in weights]
    fail(lambda failed: [step(w, o, failed) for w, o in zip(weights, optimizers, strict=True)])
    assert [len(optimizer.state) for optimizer in optimizers] == [0, 0]


def test_a_rate_in_a_tensor_that_a_scheduler_has_changed_stays_changed() -> None:
    weight = torch.nn.Parameter(torch.ones(2, device="remote"))
    rate = torch.tensor(0.5)
    optimizer = torch.optim.Adam([weight], lr=rate, foreach=False)
    step(weight, optimizer, 1)
    torch_remote.synchronize()

    def work(failed: torch.Tensor) -> None:
        optimizer.zero_grad()
        (weight * failed).sum().backward()
        optimizer.step()
        rate.fill_(0.25)

    fail(work)
    assert rate.item() == 0.25
    assert [int(state["step"]) for state in optimizer.state.values()] == [1]


def test_warnings_that_are_errors_do_not_stop_the_restoration(unraisable: list[Any]) -> None:
    weight, optimizer = make_adam()
    step(weight, optimizer, 1)
    odd = NoState([torch.nn.Parameter(torch.ones(2, device="remote"))], lr=0.1)
    odd.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)

        def work(failed: torch.Tensor) -> None:
            odd.step()
            step(weight, optimizer, failed)

        fail(work)
    assert_taken_back(weight, optimizer)
