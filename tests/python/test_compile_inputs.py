"""What goes into a compiled graph and comes out: views, aliases, changes in place, parameters."""

from __future__ import annotations

import pytest
import torch
from compile_parts import (  # noqa: F401
    compiled,
    every_graph_is_a_program,
    forget_what_was_compiled,
    same_on_both,
)
from helpers import DEVICE
from sent import payload
from torch import nn

import torch_remote

Tensor = torch.Tensor


def test_outputs_stay_what_they_are_over_later_runs() -> None:
    function = torch.compile(lambda x: x * 2)
    found = [function(torch.full((2,), float(i), device=DEVICE)) for i in range(5)]
    assert [value[0].item() for value in found] == [0.0, 2.0, 4.0, 6.0, 8.0]


def test_an_output_is_fed_back_and_changed_in_place(no_line: None) -> None:
    def run(device: str) -> list[Tensor]:
        def step(x: Tensor, y: Tensor) -> Tensor:
            x.add_(1)
            return x * y

        function = compiled(step, device)
        x = torch.randn(3).to(device)
        found = [x]
        for _ in range(4):
            x = function(x, found[0])
            found.append(x)
        return found

    same_on_both(run)


def test_a_change_in_place_bumps_the_version_of_the_input() -> None:
    def step(x: Tensor) -> Tensor:
        x.mul_(2)
        return x + 1

    function = torch.compile(step)
    x = torch.ones(2, device=DEVICE)
    for _ in range(3):
        before = x._version
        function(x)
        assert x._version > before
    assert x.tolist() == [8.0, 8.0]


def test_a_view_that_comes_back_has_the_version_of_its_input() -> None:
    def step(x: Tensor) -> Tensor:
        return x[1:]

    x = torch.ones(3, device=DEVICE)
    for _ in range(3):
        y = torch.compile(lambda value: (step(value), value * 2))(x)[0]
        before = y._version
        x.add_(1)
        assert y._version == before + 1


def test_inputs_that_share_memory_and_views_that_come_back(no_line: None) -> None:
    def run(device: str) -> list[Tensor]:
        def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            y.add_(x.sum())
            return x, y.T, x[1:] * 2

        function = compiled(step, device)
        whole = torch.randn(4, 4).to(device)
        found: list[Tensor] = []
        for _ in range(3):
            found += function(whole[:2], whole[2:])
            found += function(whole[:2].clone(), whole[:2])
        found[1].zero_()
        return [*found, whole]

    same_on_both(run)


def test_other_strides_and_an_expanded_input(no_line: None) -> None:
    def run(device: str) -> list[Tensor]:
        function = compiled(lambda x: x.contiguous().view(-1).cumsum(0), device)
        x = torch.randn(3, 4).to(device)
        return [function(x), function(x.T), function(x[:, :1].expand(3, 4)), function(x)]

    same_on_both(run)


def test_slices_of_one_tensor_are_one_program() -> None:
    data = torch.randn(40, 4).to(DEVICE)
    function = torch.compile(lambda x: x.sin() @ x.T)
    function(data[:4])
    found: list[Tensor] = []
    with torch_remote.count() as counted:
        sent = payload(lambda: found.extend(function(data[at : at + 4]) for at in range(0, 40, 4)))
    assert counted.calls == 10
    assert sent < 10 * 20
    for at, value in enumerate(found):
        part = data[4 * at : 4 * at + 4]
        assert torch.equal(value, part.sin() @ part.T)


@pytest.mark.parametrize("absolute", [False, True])
def test_a_view_by_place_stays_where_it_is(absolute: bool) -> None:
    def run(device: str) -> list[Tensor]:
        data = torch.arange(40.0).to(device)
        function = compiled(
            lambda x: torch.as_strided(x, (3,), (2,), 1 if absolute else None) * 2, device
        )
        return [function(data[at : at + 8]) for at in (0, 8, 24, 8)]

    same_on_both(run)


def test_views_of_another_element_size_in_slices_raise_what_pytorch_raises() -> None:
    data = torch.randn(40).to(DEVICE)
    step = torch.compile(lambda x: x.view(torch.float64) + 1)
    assert torch.equal(step(data[0:10]), data[0:10].view(torch.float64) + 1)
    with pytest.raises(RuntimeError, match="storage_offset"):
        step(data[1:11])
    assert torch.equal(step(data[2:12]), data[2:12].view(torch.float64) + 1)


def test_parameters_are_replaced() -> None:
    def run(device: str) -> list[Tensor]:
        model = nn.Linear(3, 3).to(device)
        function = compiled(model, device)
        x = torch.randn(2, 3).to(device)
        found = [function(x)]
        model.load_state_dict({name: value * 2 for name, value in model.state_dict().items()})
        found.append(function(x))
        model.weight.data = model.weight.data + 1
        found.append(function(x))
        model.weight = nn.Parameter(model.weight.detach() * 3)
        found.append(function(x))
        return found

    same_on_both(run)


def test_tied_weights_and_accumulated_gradients(no_line: None) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(7, 4)
            self.out = nn.Linear(4, 7, bias=False)
            self.out.weight = self.embed.weight

        def forward(self, tokens: Tensor) -> Tensor:
            return nn.functional.cross_entropy(self.out(self.embed(tokens)), tokens)

    def run(device: str) -> list[Tensor]:
        model = Tied().to(device)
        function = compiled(model, device)
        for _ in range(3):
            function(torch.randint(7, (5,)).to(device)).backward()
        return [gradient for each in model.parameters() if (gradient := each.grad) is not None]

    same_on_both(run)


def test_outputs_that_are_one_tensor_or_views_of_each_other(no_line: None) -> None:
    def run(device: str) -> list[Tensor]:
        def step(x: Tensor) -> tuple[Tensor, ...]:
            y = x * 2
            return y, y, y[1:], y.T, x.detach()

        function = compiled(step, device)
        found: list[Tensor] = []
        for _ in range(3):
            x = torch.randn(3, 3).to(device)
            results = function(x)
            assert results[0] is results[1]
            results[2].add_(1)
            x.add_(1)
            found += results
        return found

    same_on_both(run)


def test_a_change_in_place_inside_gives_the_versions_of_aot_eager(no_line: None) -> None:
    def versions(device: str) -> list[int]:
        def step(x: Tensor) -> Tensor:
            x.mul_(2)
            return x + 1

        function = compiled(step, device)
        x = torch.ones(2, device=device)
        weight = torch.ones(2, device=device, requires_grad=True)
        found = []
        for _ in range(3):
            older = (weight * x).sum()
            function(x)
            found.append(x._version)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                older.backward()
        return found

    assert versions(DEVICE) == versions("cpu")
