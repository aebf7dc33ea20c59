"""A tensor is printed as on the CPU, apart from the device, and costs one round trip."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_remote

SHAPES = [
    (), (0,), (0, 3), (1,), (6,), (7,), (1001,), (3, 400), (400, 3), (50, 50), (7, 7, 30),
    (3, 3, 3, 100), (9, 9, 9, 9), (1200, 1, 1),
]  # fmt: skip

KINDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "float": lambda x: x,
    "large": lambda x: x * 1e6,
    "whole": lambda x: x.round(),
    "int": lambda x: (x * 100).int(),
    "bool": lambda x: x > 0,
    "half": lambda x: x.half(),
    "bfloat16": lambda x: x.bfloat16(),
    "double": lambda x: x.double(),
    "float8": lambda x: x.to(torch.float8_e4m3fn),
    "complex": lambda x: torch.complex(x, -x),
}

OPTIONS: dict[str, dict[str, Any]] = {
    "precision": {"precision": 2},
    "scientific": {"sci_mode": True},
    "not_scientific": {"sci_mode": False},
    "one_edge": {"edgeitems": 1},
    "no_edges": {"edgeitems": 0},
    "low_threshold": {"threshold": 5},
    "zero_threshold": {"threshold": 0},
    "narrow": {"linewidth": 30},
    "short": {"profile": "short"},
    "full": {"profile": "full"},
}


def cpu_text(tensor: torch.Tensor) -> str:
    """What the CPU prints, with the device where PyTorch puts it."""
    contents = torch._tensor_str._tensor_str(tensor.detach(), len("tensor("))
    rest = repr(tensor)[len("tensor(" + contents) : -1]
    suffixes = ["device='remote:0'", *(part.strip() for part in _split_suffixes(rest))]
    return torch._tensor_str._add_suffixes("tensor(" + contents, suffixes, len("tensor("), False)


def _split_suffixes(rest: str) -> list[str]:
    """The parts of `, size=(0, 3), dtype=torch.int32`; commas in parentheses do not count."""
    parts, depth = [""], 0
    for character in rest:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part for part in parts if part.strip()]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_and_shape_prints_as_on_the_cpu(kind: str, shape: tuple[int, ...]) -> None:
    tensor = KINDS[kind](torch.randn(shape))
    assert repr(tensor.to("remote")) == cpu_text(tensor)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_print_options_hold(options: str, shape: tuple[int, ...]) -> None:
    torch.set_printoptions(**OPTIONS[options])
    for tensor in (torch.randn(shape), torch.complex(torch.randn(shape), torch.randn(shape))):
        assert repr(tensor.to("remote")) == cpu_text(tensor)


def test_values_that_are_not_finite_print_as_on_the_cpu() -> None:
    for size in (4, 2000):
        tensor = torch.randn(size)
        tensor[0], tensor[1], tensor[-1] = math.nan, -math.inf, math.inf
        assert repr(tensor.to("remote")) == cpu_text(tensor)


@pytest.mark.parametrize("size", [4, 60])
def test_views_print_as_on_the_cpu(size: int) -> None:
    tensor = torch.complex(torch.randn(size, size), torch.randn(size, size))
    remote = tensor.to("remote")
    for view in (
        lambda x: x.conj(),
        lambda x: x.conj().imag,
        lambda x: x.real.t(),
        lambda x: x.imag[1::2, ::3],
        lambda x: x.real[:1].expand(300, -1),
    ):
        assert repr(view(remote)) == cpu_text(view(tensor))


def test_gradients_are_named() -> None:
    leaf = torch.ones(2, requires_grad=True)
    remote = torch.ones(2, device="remote", requires_grad=True)
    assert repr(remote) == cpu_text(leaf)
    assert repr(remote * 2) == cpu_text(leaf * 2)
    parameter = torch.nn.Parameter(torch.ones(2))
    assert repr(torch.nn.Parameter(torch.ones(2, device="remote"))) == (
        "Parameter containing:\n" + cpu_text(parameter.data.requires_grad_())
    )


def test_tensors_print_in_containers_and_formats() -> None:
    tensor = torch.tensor([1.5, 2.5])
    remote = tensor.to("remote")
    assert str([remote]) == f"[{cpu_text(tensor)}]"
    assert f"{remote}" == cpu_text(tensor)
    assert f"{remote[0]:.3f}" == "1.500"
    assert f"{remote[0]}" == "1.5"


@pytest.mark.parametrize("shape", [(), (5,), (2000,), (100, 100), (30, 30, 30)], ids=str)
def test_printing_is_one_round_trip(
    shape: tuple[int, ...], sync_count: Callable[[Callable[[], object]], int]
) -> None:
    for tensor in (torch.randn(shape), torch.randint(9, shape), torch.randn(shape) > 0):
        remote = tensor.to("remote")
        assert sync_count(lambda value=remote: repr(value)) == 1


def test_printing_downloads_only_what_is_printed() -> None:
    tensor = torch.randn(1000, 1000, device="remote")
    torch.remote.synchronize()
    with torch_remote.count() as counted:
        repr(tensor)
    assert counted.bytes_received < 36 * 4 + 512
    assert counted.calls <= 1


def test_an_item_in_a_format_is_one_round_trip(
    sync_count: Callable[[Callable[[], object]], int],
) -> None:
    scalar = torch.tensor(3.25, device="remote")
    assert sync_count(lambda: f"{scalar:.2f}") == 1
    assert sync_count(lambda: scalar.item()) == 1
    vector = torch.arange(5, device="remote")
    assert sync_count(lambda: vector.tolist()) == 1
