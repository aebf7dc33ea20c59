"""Autograd on the device gives the CPU's gradients, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import DEVICE, assert_gradients_match_cpu, assert_matches_cpu, assert_same
from torch.utils.checkpoint import checkpoint


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(shape).requires_grad_()


FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[[], list[torch.Tensor]]]] = {
    "arithmetic": (lambda a, b: (a * b + a / b - b**2).exp(), lambda: [leaf(3, 4), leaf(4)]),
    "matmul": (lambda a, b: a @ b, lambda: [leaf(2, 3, 4), leaf(4, 5)]),
    "linear": (F.linear, lambda: [leaf(3, 4), leaf(5, 4), leaf(5)]),
    "softmax": (lambda a: a.softmax(-1).log_softmax(0), lambda: [leaf(4, 5)]),
    "layer_norm": (
        lambda a, w, b: F.layer_norm(a, (5,), w, b),
        lambda: [leaf(4, 5), leaf(5), leaf(5)],
    ),
    "group_norm": (lambda a: F.group_norm(a, 2), lambda: [leaf(2, 4, 3)]),
    "batch_norm": (lambda a: F.batch_norm(a, None, None, training=True), lambda: [leaf(4, 3, 5)]),
    "conv1d": (F.conv1d, lambda: [leaf(2, 3, 9), leaf(4, 3, 3), leaf(4)]),
    "conv2d": (
        lambda a, w: F.conv2d(a, w, padding=1, stride=2),
        lambda: [leaf(2, 3, 8, 8), leaf(4, 3, 3, 3)],
    ),
    "depthwise": (
        lambda a, w: F.conv2d(a, w, groups=4),
        lambda: [leaf(2, 4, 6, 6), leaf(4, 1, 3, 3)],
    ),
    "conv_transpose2d": (F.conv_transpose2d, lambda: [leaf(2, 3, 5, 5), leaf(3, 4, 3, 3)]),
    "pooling": (lambda a: F.max_pool2d(a, 2) + F.avg_pool2d(a, 2), lambda: [leaf(2, 3, 8, 8)]),
    "interpolate": (
        lambda a: F.interpolate(a, scale_factor=2.0, mode="bilinear"),
        lambda: [leaf(1, 2, 4, 4)],
    ),
    "activations": (
        lambda a: [
            F.gelu(a),
            F.relu(a),
            F.silu(a),
            F.elu(a),
            F.leaky_relu(a),
            a.sigmoid(),
            a.tanh(),
        ],
        lambda: [leaf(4, 5)],
    ),
    "reductions": (
        lambda a: [a.sum(0), a.mean(), a.var(1), a.amax(0), a.norm(), a.logsumexp(1)],
        lambda: [leaf(4, 5)],
    ),
    "shapes": (
        lambda a: torch.cat([a.t().reshape(-1), a[1:, ::2].flatten(), a.repeat(2, 1)[0]]),
        lambda: [leaf(4, 5)],
    ),
    "indexing": (
        lambda a: a[torch.tensor([0, 2, 0], device=a.device)] * a[1],
        lambda: [leaf(4, 5)],
    ),
    "where": (lambda a, b: torch.where(a > b, a, b * 2), lambda: [leaf(4, 5), leaf(4, 5)]),
    "cumsum": (lambda a: a.cumsum(0) * a.cumprod(1), lambda: [leaf(4, 5)]),
    "sort": (lambda a: a.sort(1).values * a.topk(5).values, lambda: [leaf(4, 5)]),
    "einsum": (
        lambda a, b: torch.einsum("bij,bjk->bik", a, b),
        lambda: [leaf(2, 3, 4), leaf(2, 4, 5)],
    ),
    "complex": (
        lambda a, b: torch.view_as_real(torch.complex(a, b).conj() * torch.complex(b, a)),
        lambda: [leaf(4), leaf(4)],
    ),
    "dropout": (lambda a: F.dropout(a, 0.5), lambda: [leaf(20, 20)]),
    "losses": (
        lambda a, b: [
            F.mse_loss(a, b),
            F.smooth_l1_loss(a, b),
            F.binary_cross_entropy_with_logits(a, b.sigmoid()),
        ],
        lambda: [leaf(4, 5), leaf(4, 5)],
    ),
    "linalg": (
        lambda a: torch.linalg.solve(a @ a.mT + 5 * torch.eye(4, device=a.device), a),
        lambda: [leaf(4, 4)],
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients_match_the_cpu(name: str) -> None:
    function, arguments = FUNCTIONS[name]
    assert_gradients_match_cpu(function, *arguments())


def test_embedding_and_cross_entropy_match_the_cpu() -> None:
    tokens, targets = torch.randint(10, (4, 7)), torch.randint(5, (4, 7))

    def run(weight: torch.Tensor, head: torch.Tensor, tokens: Any, targets: Any) -> torch.Tensor:
        logits = F.embedding(tokens, weight, padding_idx=0) @ head
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=3)

    assert_gradients_match_cpu(run, leaf(10, 6), leaf(6, 5), tokens, targets)


def test_second_derivatives_match_the_cpu() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        (first,) = torch.autograd.grad(x.sin().pow(3).sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    assert_matches_cpu(run, leaf(3, 4))


def test_jacobians_and_forward_mode_match_the_cpu() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * x.sum()

    def run(x: torch.Tensor) -> list[torch.Tensor]:
        return [
            torch.autograd.functional.jacobian(function, x),
            torch.func.grad(lambda y: function(y).sum())(x),
            torch.func.jvp(function, (x,), (torch.ones_like(x),))[1],
            torch.func.vmap(function)(x.reshape(2, 2)),
        ]

    assert_matches_cpu(run, torch.randn(4))


def test_gradients_accumulate_and_zero() -> None:
    x = torch.ones(3, device=DEVICE, requires_grad=True)
    for _ in range(3):
        (x * 2).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [6, 6, 6]
    assert x.grad.device == x.device


def test_hooks_see_tensors_of_the_device() -> None:
    seen: list[torch.Tensor] = []
    x = torch.ones(3, device=DEVICE, requires_grad=True)
    y = x * 2
    y.register_hook(seen.append)
    x.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf.grad))
    y.sum().backward()
    assert [tensor.tolist() for tensor in seen] == [[1, 1, 1], [2, 2, 2]]


def test_a_function_of_ones_own_runs_backward() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            return gradient * 2 + x * 0

    assert_gradients_match_cpu(Double.apply, leaf(4))


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing_with_dropout_matches_the_cpu(use_reentrant: bool) -> None:
    def run(x: torch.Tensor) -> list[Any]:
        y = checkpoint(lambda z: F.dropout(z.tanh(), 0.3), x, use_reentrant=use_reentrant)
        y.square().sum().backward()
        return [y, x.grad]

    assert_matches_cpu(run, leaf(10, 10))


def test_in_place_change_of_a_saved_tensor_is_noticed() -> None:
    x = torch.ones(3, device=DEVICE, requires_grad=True)
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_no_grad_and_inference_mode_give_the_same_values() -> None:
    x = torch.randn(4, 4)
    expected = x @ x
    with torch.no_grad():
        assert_same(x.to(DEVICE) @ x.to(DEVICE), expected)
    with torch.inference_mode():
        result = x.to(DEVICE) @ x.to(DEVICE)
        assert result.is_inference()
        assert_same(result.clone(), expected)


def test_gradients_cross_between_cpu_and_device() -> None:
    x = torch.ones(3, requires_grad=True)
    (x.to(DEVICE) * 2).cpu().mul(3).sum().backward()
    assert x.grad is not None and x.grad.device.type == "cpu"
    assert x.grad.tolist() == [6, 6, 6]
