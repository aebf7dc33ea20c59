"""torch.func, forward-mode differentiation and torch.autograd.functional: the CPU's results."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from helpers import assert_same, moved
from torch import func
from torch.nn import functional

X = torch.linspace(-1, 1, 12).reshape(4, 3)


def network(device: str) -> torch.nn.Module:
    torch.manual_seed(3)
    layers = [torch.nn.Conv2d(1, 2, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8, 3)]
    return torch.nn.Sequential(*layers).to(device)


def ensemble(x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(1)
    models = [torch.nn.Linear(3, 2).to(x.device) for _ in range(3)]
    parameters, buffers = func.stack_module_state(models)
    base = copy.deepcopy(models[0]).to("meta")

    def call(p: Any, b: Any, x: torch.Tensor) -> torch.Tensor:
        return func.functional_call(base, (p, b), (x,))

    return func.vmap(call, in_dims=(0, 0, None))(parameters, buffers, x)


def per_sample_gradients(x: torch.Tensor) -> Any:
    model = network(x.device.type)
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    images = torch.linspace(0, 1, 80).reshape(5, 1, 4, 4).to(x.device)
    targets = torch.tensor([0, 1, 2, 0, 1]).to(x.device)

    def loss(p: Any, image: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        output = func.functional_call(model, p, (image[None],))
        return functional.cross_entropy(output, target[None])

    return func.vmap(func.grad(loss), in_dims=(None, 0, 0))(parameters, images, targets)


def dual(x: torch.Tensor) -> torch.Tensor:
    with forward_ad.dual_level():
        y = functional.layer_norm(forward_ad.make_dual(x, torch.ones_like(x)), (3,)).softmax(-1)
        return forward_ad.unpack_dual(y).tangent


def cube(x: torch.Tensor) -> torch.Tensor:
    return (x**3).sum()


A = torch.autograd.functional
TRANSFORMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "vmap": lambda x: func.vmap(torch.cumsum, in_dims=(0, None))(x, 0),
    "vmap with different numbers": lambda x: func.vmap(
        lambda row: row + torch.randn_like(row), randomness="different"
    )(x),
    "vmap with the same mask": lambda x: func.vmap(functional.dropout, randomness="same")(x),
    "vmap in chunks": lambda x: func.vmap(torch.sin, chunk_size=3)(x),
    "grad": lambda x: func.grad(cube)(x),
    "grad and value": lambda x: func.grad_and_value(cube)(x),
    "vjp": lambda x: func.vjp(torch.sin, x)[1](x),
    "jvp": lambda x: func.jvp(torch.sin, (x,), (x,)),
    "linearize": lambda x: func.linearize(torch.sin, x)[1](x),
    "jacrev": lambda x: func.jacrev(torch.tanh)(x[0]),
    "jacfwd": lambda x: func.jacfwd(torch.tanh)(x[0]),
    "hessian": lambda x: func.hessian(cube)(x[0]),
    "functionalize": lambda x: func.functionalize(lambda x: x.clone().add_(1))(x),
    "ensemble": ensemble,
    "per sample": per_sample_gradients,
    "dual": dual,
    "jacobian": lambda x: A.jacobian(torch.sin, x[0]),
    "jacobian by vmap": lambda x: A.jacobian(torch.sin, x[0], vectorize=True),
    "jacobian forward": lambda x: A.jacobian(
        torch.sin, x[0], vectorize=True, strategy="forward-mode"
    ),
    "functional hessian": lambda x: A.hessian(cube, x[0]),
    "vhp": lambda x: A.vhp(cube, x[0], x[1]),
    "hvp": lambda x: A.hvp(cube, x[0], x[1]),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_transform_gives_the_cpus_result_on_the_device(name: str) -> None:
    torch.manual_seed(6)
    expected = TRANSFORMS[name](X)
    torch.manual_seed(6)
    actual = TRANSFORMS[name](moved(X))
    leaves = torch.utils._pytree.tree_leaves(actual)
    assert all(leaf.device.type == "remote" for leaf in leaves)
    assert_same(actual, expected)


def test_gradcheck_passes_in_all_its_modes() -> None:
    x = torch.linspace(0.1, 1, 3, dtype=torch.float64).to("remote").requires_grad_()
    for options in (
        {},
        {"fast_mode": True},
        {"check_forward_ad": True, "check_batched_grad": True},
    ):
        assert torch.autograd.gradcheck(torch.sin, x, **options)
    assert torch.autograd.gradgradcheck(torch.sin, x)
