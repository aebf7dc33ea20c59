"""Composites that take the server's branch check their arguments as PyTorch's own do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import DEVICE
from torch import Tensor
from torch.nn import functional as F


def zeros(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(sizes, dtype=dtype)


def raised(call: Callable[..., object], *args: object) -> tuple[type, str]:
    with pytest.raises((RuntimeError, IndexError, ValueError)) as caught:
        call(*args)
    return caught.type, str(caught.value).partition("\n")[0]


def assert_refused_alike(call: Callable[..., object], *tensors: object) -> None:
    """The same type and text on both devices, at the call itself."""
    there = [
        [each.to(DEVICE) for each in item]
        if isinstance(item, list)
        else item.to(DEVICE)
        if isinstance(item, Tensor)
        else item
        for item in tensors
    ]
    assert raised(call, *there) == raised(call, *tensors)


GATES = {torch.lstm: 4, torch.gru: 3, torch.rnn_tanh: 1, torch.rnn_relu: 1}
RIGHT: dict[str, Any] = {
    "input": (5, 2, 3),
    "state": (1, 2, 4),
    "weights": 4,
    "layers": 1,
    "bidirectional": False,
    "dtype": torch.float64,  # oneDNN, which checks less, has no LSTM for it
}
WRONG_LAYERS: dict[str, dict[str, Any]] = {
    "input size": {"input": (5, 2, 7)},
    "state batch": {"state": (1, 3, 4)},
    "state size": {"state": (1, 2, 9)},
    "state layers": {"state": (2, 2, 4)},
    "too few weights": {"weights": 3},
    "too many layers": {"layers": 2},
    "bidirectional": {"bidirectional": True},
    "no steps": {"input": (0, 2, 3)},
    "dtype": {"dtype": torch.float32},
}


@pytest.mark.parametrize("kind", GATES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("wrong", WRONG_LAYERS)
def test_a_recurrent_layer_with(kind: Callable[..., object], wrong: str) -> None:
    given = {**RIGHT, **WRONG_LAYERS[wrong]}
    rows = 4 * GATES[kind]
    shapes = [(rows, 3), (rows, 4), (rows,), (rows,)][: given["weights"]]
    state = zeros(*given["state"], dtype=torch.float64)
    options = (True, given["layers"], 0.0, False, given["bidirectional"], False)
    assert_refused_alike(
        lambda x, hx, weights: kind(x, hx, weights, *options),
        zeros(*given["input"], dtype=given["dtype"]),
        [state, state] if kind is torch.lstm else state,
        [zeros(*shape, dtype=torch.float64) for shape in shapes],
    )


def test_an_lstm_for_onednn_with_too_few_weights() -> None:
    def call(x: Tensor, state: Tensor, weights: list[Tensor]) -> object:
        return torch.lstm(x, [state, state], weights, True, 1, 0.0, False, False, False)

    assert_refused_alike(call, zeros(5, 2, 3), zeros(1, 2, 4), [zeros(16, 3), zeros(16, 4)])


SAMPLERS = [torch.grid_sampler, torch.grid_sampler_2d, torch._grid_sampler_2d_cpu_fallback]
GRIDS = [((5, 5, 5, 5), (1, 1, 4, 4)), ((1, 1, 4, 4), (1, 2, 2, 3)), ((1, 1, 0, 4), (1, 2, 2, 2))]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: sampler.__name__)
@pytest.mark.parametrize(("input", "grid"), GRIDS)
def test_a_grid_sampler_with_wrong_sizes(
    sampler: Callable[..., object], input: tuple[int, ...], grid: tuple[int, ...]
) -> None:
    def call(x: Tensor, grid: Tensor) -> object:
        return sampler(x.requires_grad_(), grid, 0, 0, True)

    assert_refused_alike(call, zeros(*input), zeros(*grid))


def test_the_fallback_of_the_grid_sampler_computes_and_differentiates() -> None:
    x, grid = torch.rand(2, 3, 5, 5), torch.rand(2, 4, 4, 2) * 2 - 1
    results = []
    for device in ("cpu", DEVICE):
        image = x.to(device).detach().requires_grad_()
        sampled = torch._grid_sampler_2d_cpu_fallback(image, grid.to(device), 0, 0, False)
        sampled.square().sum().backward()
        assert image.grad is not None
        results.append((sampled.detach().cpu(), image.grad.cpu()))
    torch.testing.assert_close(results[1], results[0])


WRONG = {
    "sdpa widths": (F.scaled_dot_product_attention, [(1, 1, 3, 4), (1, 1, 3, 5), (1, 1, 3, 4)]),
    "sdpa dims": (F.scaled_dot_product_attention, [(4,), (4,), (4,)]),
    "sdpa mask": (F.scaled_dot_product_attention, [(1, 1, 3, 4)] * 3 + [(7, 7)]),
    "dropout": (lambda x: torch.dropout(x, 1.5, True), [(4,)]),
    "softmax": (lambda x: torch.softmax(x, 3), [(4,)]),
    "max_pool1d": (lambda x: torch.max_pool1d(x, 2, padding=3), [(1, 1, 4)]),
    "group_norm": (lambda x: torch.group_norm(x, 2), [(2, 5, 3)]),
    "rms_norm": (lambda x, weight: torch.rms_norm(x, [4], weight), [(2, 4), (3,)]),
    "batch_norm": (F.batch_norm, [(2, 3, 4), (4,), (4,)]),
    "lstm_cell": (
        lambda x, h, w, v: torch.lstm_cell(x, [h, h], w, v),
        [(3, 3), (2, 4), (16, 3), (16, 4)],
    ),
    "gru_cell": (torch.gru_cell, [(2, 5), (2, 4), (12, 3), (12, 4)]),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_of(name: str) -> None:
    call, sizes = WRONG[name]
    assert_refused_alike(call, *(zeros(*each) for each in sizes))


def test_an_error_of_pytorchs_shape_code_names_the_remote_device() -> None:
    x = torch.zeros(3, device=DEVICE)
    with pytest.raises(RuntimeError, match=r"\(self\) remote:0, \(index\) cpu, and \(source\)"):
        x.index_copy(0, torch.tensor(1), torch.tensor(1.0, device=DEVICE))
