"""torch.compile under the redirect, with its default backend: functions that move and make."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from redirecting import TorchDevice, redirected


def make(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(2, device="cuda") + x.sum().item()


def make_only(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(2, device="cuda") + 2


def move_by_cuda(x: torch.Tensor) -> torch.Tensor:
    return x.cuda() + 1


def move_by_to(x: torch.Tensor) -> torch.Tensor:
    return x.to("cuda") + 1


def move_by_device(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.device("cuda", 0), non_blocking=True) + 1


def move_and_back(x: torch.Tensor) -> torch.Tensor:
    return (x.to("cuda") * 2).cpu()


def branch(x: torch.Tensor) -> torch.Tensor:
    y = x.to("cuda" if torch.cuda.is_available() else "cpu")
    return torch.nn.functional.relu(y) + torch.ones_like(y, device="cuda")


def nested(x: torch.Tensor) -> torch.Tensor:
    return torch.compile(move_by_to)(x) + torch.compile(make_only)(x)


FUNCTIONS = [
    make,
    make_only,
    move_by_cuda,
    move_by_to,
    move_by_device,
    move_and_back,
    branch,
    nested,
]


@pytest.fixture(autouse=True)
def anew() -> None:
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("policy", ["foreign", "full"])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda each: each.__name__)
def test_a_function_that_moves_or_makes_tensors_is_compiled(
    function: Callable[[torch.Tensor], torch.Tensor], policy: str
) -> None:
    with redirected("remote", policy):
        x = torch.ones(2)
        expected = function(x)
        made = torch.compile(function)(x)
        assert made.device == expected.device
        assert made.tolist() == expected.tolist()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "options", [{"mode": "reduce-overhead"}, {"mode": "max-autotune"}, {"dynamic": True}], ids=str
)
def test_modes_and_decorators_are_taken(options: dict[str, Any]) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(2, 2)
            self.register_buffer("scale", torch.full((2,), 2.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x.to("cuda")) * self.scale

    with redirected("remote", "foreign"):
        model = Model().cuda()

        @torch.compile(**options)
        def run(x: torch.Tensor) -> torch.Tensor:
            return model(x).sum()

        run(torch.ones(3, 2)).backward()
        gradient = model.linear.weight.grad
        assert gradient is not None and gradient.tolist() == [[6.0, 6.0]] * 2


@pytest.mark.parametrize("read_as", ["cuda", "mps"])
def test_a_function_is_compiled_for_the_device_whatever_it_is_called(read_as: str) -> None:
    with redirected("remote", "foreign", read_as=read_as):
        made = torch.compile(lambda x: x.to(read_as) + 1)(torch.ones(2))
        assert (made.device.type, made.tolist()) == (read_as, [2.0, 2.0])


def test_generated_code_is_not_the_users_line(remote: str) -> None:
    @torch.compile
    def compute(x: torch.Tensor) -> torch.Tensor:
        return x.to("cuda") + torch.zeros(3, device="cuda") + torch.rand(3)

    compute(torch.ones(3))
    compute(torch.ones(2, 3))
    sites = [each for each in TorchDevice.sites() if each.api in ("Tensor.to", "torch.rand")]
    assert not [each for each in sites if each.file == "<string>"]
    assert {each.file for each in sites} >= {__file__}


@dataclasses.dataclass
class Made:
    x: torch.Tensor = dataclasses.field(
        default_factory=functools.partial(torch.zeros, 2, device="cuda")
    )


def test_code_of_a_dataclass_is_told_as_the_line_that_makes_one(used: str) -> None:
    def lines() -> set[int]:
        return {each.line for each in TorchDevice.sites() if each.function == "make_two"}

    def make_two() -> None:
        Made()
        Made()

    make_two()
    make_two()
    first = make_two.__code__.co_firstlineno
    assert lines() == {first + 1, first + 2}
