"""Jagged nested tensors: attention, and other operators of a model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import DEVICE, assert_same
from torch import Tensor, nn
from torch.nn import functional

LENGTHS = (3, 5, 2, 7)


def _jagged(width: int, dtype: torch.dtype, device: str, lengths: tuple[int, ...] = LENGTHS) -> Any:
    parts = [torch.randn(length, width).to(dtype) for length in lengths]
    return torch.nested.nested_tensor(
        [part.to(device) for part in parts], layout=torch.jagged, device=device
    )


def _heads(jagged: Any) -> Any:
    return jagged.unflatten(-1, [2, -1]).transpose(1, 2)


def _attention(device: str, dtype: torch.dtype = torch.float32, **options: Any) -> list[Tensor]:
    """The values of the result and of the gradients."""
    torch.manual_seed(0)
    leaves = [_jagged(16, dtype, device).requires_grad_() for _ in range(3)]
    torch.manual_seed(1)
    result = functional.scaled_dot_product_attention(*map(_heads, leaves), **options)
    values = result.transpose(1, 2).values()
    values.square().sum().backward()
    return [values.detach(), *(leaf.grad.values() for leaf in leaves)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_attention_between_jagged_tensors_is_the_cpus(dtype: torch.dtype) -> None:
    assert_same(_attention(DEVICE, dtype), _attention("cpu", dtype))


@pytest.mark.parametrize("options", [{"scale": 0.3}, {"scale": -0.3}, {"dropout_p": 0.4}])
def test_scale_and_dropout_of_jagged_attention_are_the_cpus(options: dict[str, float]) -> None:
    assert_same(_attention(DEVICE, **options), _attention("cpu", **options))


def test_jagged_attention_without_gradients_is_the_cpus() -> None:
    with torch.no_grad():
        torch.manual_seed(0)
        there = functional.scaled_dot_product_attention(
            *[_heads(_jagged(16, torch.float32, DEVICE))] * 3
        )
        torch.manual_seed(0)
        here = functional.scaled_dot_product_attention(
            *[_heads(_jagged(16, torch.float32, "cpu"))] * 3
        )
    assert_same(there.values(), here.values())


def test_what_the_cpu_refuses_is_refused_in_its_words() -> None:
    errors = []
    for device in ("cpu", DEVICE):
        with pytest.raises(RuntimeError) as error:
            _attention(device, is_causal=True)
        errors.append((error.type, str(error.value)))
    assert errors[0] == errors[1]


def test_head_counts_that_differ_are_refused_as_on_the_cpu() -> None:
    for device in ("cpu", DEVICE):
        one, four = (
            _jagged(width, torch.float32, device).unflatten(-1, [-1, 8]).transpose(1, 2)
            for width in (8, 32)
        )
        with pytest.raises(RuntimeError, match="no broadcasting is currently performed"):
            functional.scaled_dot_product_attention(four, one, one, enable_gqa=True)


def test_a_model_trains_on_jagged_batches_as_on_the_cpu() -> None:
    def run(device: str) -> list[Tensor]:
        torch.manual_seed(0)
        into = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        out, norm = nn.Linear(16, 16), nn.LayerNorm(16)
        model = nn.ModuleList([*into, out, norm]).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
        for _ in range(3):
            batch = _jagged(16, torch.float32, device)
            normed = norm(batch)
            mixed = functional.scaled_dot_product_attention(
                *(_heads(each(normed)) for each in into)
            )
            loss = out(mixed.transpose(1, 2).flatten(2)).values().square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return [parameter.detach() for parameter in model.parameters()]

    assert_same(run(DEVICE), run("cpu"))
