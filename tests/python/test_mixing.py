"""Mixing devices: an error that names both, except for numbers and 0-dim CPU tensors."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import DEVICE, assert_same

import torch_remote

MIXES: dict[str, tuple[str, Callable[[torch.Tensor, torch.Tensor], Any]]] = {
    "add": ("add", lambda x, y: x + y),
    "mul_": ("mul_", lambda x, y: x.clone().mul_(y)),
    "mm": ("mm", lambda x, y: x @ y),
    "cat": ("cat", lambda x, y: torch.cat([x, y])),
    "stack": ("stack|cat", lambda x, y: torch.stack([x, y])),
    "where": ("where", lambda x, y: torch.where(x > 0, x, y)),
    "linear": (
        "addmm|linear",
        lambda x, y: torch.nn.functional.linear(x, y, torch.ones_like(x)[0]),
    ),
    "layer_norm": ("layer_norm", lambda x, y: torch.layer_norm(x, (3,), y[0])),
    "index_select": ("index_select", lambda x, y: x.index_select(0, y[0].long())),
    "conv": ("conv", lambda x, y: torch.conv1d(x[None], y[None])),
    "lerp": ("lerp", lambda x, y: x.lerp(y, 0.5)),
    "dot": ("dot", lambda x, y: x[0].dot(y[0])),
    "_foreach_add": ("_foreach_add", lambda x, y: torch._foreach_add([x], [y])),
}


def square() -> torch.Tensor:
    return torch.arange(9.0).reshape(3, 3)


@pytest.mark.parametrize("name", MIXES)
@pytest.mark.parametrize("first", ["remote", "cpu"])
def test_mixing_with_a_cpu_tensor_names_both_devices_and_the_operator(
    name: str, first: str
) -> None:
    operator, mix = MIXES[name]
    second = {"remote": "cpu", "cpu": "remote"}[first]
    with pytest.raises(RuntimeError) as raised:
        result = mix(square().to(first), square().to(second))
        torch.remote.synchronize()
        pytest.fail(f"gave {result}")
    text = str(raised.value)
    assert "Expected all tensors to be on the same device" in text
    assert "cpu" in text and "remote:0" in text
    assert re.search(operator, text)


@pytest.mark.parametrize("there", [True, False], ids=["on the device", "on the CPU"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.complex64], ids=str)
@pytest.mark.parametrize("name", ["addcdiv", "addcmul"])
def test_numbers_of_a_list_are_taken_from_a_tensor_of_the_cpu(
    name: str, dtype: torch.dtype, there: bool
) -> None:
    """PyTorch's kernels for CUDA want them there, so that they need not wait."""
    numbers = torch.tensor([0.5, -2.0], dtype=torch.float64)
    lists = [[torch.randn(3).to(dtype) + 2 for _ in numbers] for _ in range(3)]
    remote = [[x.to(DEVICE) for x in each] for each in lists]
    new, in_place = getattr(torch, f"_foreach_{name}"), getattr(torch, f"_foreach_{name}_")
    scalars = numbers.to(DEVICE) if there else numbers
    assert_same(new(*remote, scalars), new(*lists, numbers))
    in_place(*remote, scalars)
    in_place(*lists, numbers)
    assert_same(remote[0], lists[0])
    with pytest.raises(RuntimeError, match="Expected length of scalars to match input"):
        new(*remote, scalars[:1])


def test_words_of_the_user_in_an_error_are_not_taken_for_a_device() -> None:
    x = torch.ones(3, device="remote")
    with pytest.raises(RuntimeError, match="but found 'meta'"):
        torch.div(x, x, rounding_mode="meta")


def test_mixing_two_remote_devices_names_both() -> None:
    with torch_remote.connect("local") as machine:
        device = machine.devices[0]
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same") as raised:
            square().to("remote:0") + square().to(device)
    assert "remote:0" in str(raised.value) and str(device) in str(raised.value)


def test_values_are_good_after_a_mixing_error() -> None:
    x = square().to("remote")
    with pytest.raises(RuntimeError):
        x.add_(square())
    assert_same(x, square())


def test_indexing_with_a_cpu_index_works_as_with_cuda() -> None:
    x = square()
    for index in (torch.tensor([2, 0]), torch.tensor([True, False, True])):
        assert_same(x.to(DEVICE)[index], x[index])


NUMBERS = [
    2, 2.5, True, 1 + 2j,
    torch.tensor(2), torch.tensor(2.5), torch.tensor(2.5, dtype=torch.float64), torch.tensor(True),
    torch.tensor(1 + 2j), torch.tensor(3, dtype=torch.int8),
]  # fmt: skip
DTYPES = [torch.bool, torch.uint8, torch.int32, torch.float16, torch.float32, torch.complex64]


@pytest.mark.parametrize(
    ("number", "dtype"), list(itertools.product(NUMBERS, DTYPES)), ids=lambda value: str(value)
)
def test_numbers_and_zero_dim_cpu_tensors_promote_as_on_the_cpu(
    number: Any, dtype: torch.dtype
) -> None:
    if dtype == torch.float16 and torch.result_type(torch.ones(1, dtype=dtype), number).is_complex:
        pytest.skip("the CPU has no kernels for complex half")
    x = torch.tensor([0, 1, 3]).to(dtype)
    for function in (
        lambda a: a + number,
        lambda a: number + a,
        lambda a: a * number,
        lambda a: a / number,
        lambda a: a == number,
        lambda a: torch.where(a == 1, a, number),
    ):
        assert_same(function(x.to(DEVICE)), function(x))


def test_zero_dim_cpu_tensors_are_allowed_where_cuda_allows_them() -> None:
    x = square()
    scalar = torch.tensor(2.0)
    for function in (
        lambda a: a.add_(scalar),
        lambda a: torch.addcmul(a, a, scalar),
        lambda a: a.lerp(a + 1, scalar),
        lambda a: a.masked_fill(a > 3, scalar),
        lambda a: a.pow(scalar),
        lambda a: torch.pow(scalar, a),
    ):
        assert_same(function(x.to(DEVICE, copy=True)), function(x.clone()))


def test_a_zero_dim_tensor_of_the_device_is_no_number_for_the_cpu() -> None:
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        square() + torch.tensor(2.0, device="remote")


def test_scalar_assignment_takes_cpu_values() -> None:
    x = square().to(DEVICE)
    x[0] = torch.tensor(7.0)
    x[1, 1] = 3
    expected = square()
    expected[0] = 7
    expected[1, 1] = 3
    assert_same(x, expected)


def test_operators_between_numbers_and_the_device_keep_the_side() -> None:
    x = torch.arange(1.0, 5.0)
    for function in (
        lambda a: 2 - a,
        lambda a: 2 / a,
        lambda a: 7 // a,
        lambda a: 7 % a,
        lambda a: 2**a,
        lambda a: torch.sub(torch.tensor(1.0), a, alpha=2),
    ):
        assert_same(function(x.to(DEVICE)), function(x))


def test_a_zero_dim_cpu_tensor_is_never_written_by_a_remote_operator() -> None:
    mask = torch.ones(2, 2, dtype=torch.bool, device=DEVICE)
    number = torch.zeros(())
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        number.masked_fill_(mask[0, 0], 1.0)
    assert number.item() == 0
