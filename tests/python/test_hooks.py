"""Hooks of modules and tensors, and functions with a backward of their own, as on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import assert_same
from torch.autograd.graph import (
    allow_mutation_on_saved_tensors,
    register_multi_grad_hook,
    saved_tensors_hooks,
)

import torch_remote

X = torch.linspace(-1, 1, 12).reshape(4, 3)


def module_hooks(device: str) -> Any:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))
    model.to(device)
    model[0].register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1,))
    model[0].register_forward_hook(lambda module, inputs, output: output * 2)
    model[2].register_full_backward_pre_hook(lambda module, outputs: (outputs[0] * 2,))
    model[2].register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 3,))
    x = X.to(device, copy=True).requires_grad_()
    model(x).sum().backward()
    return x.grad, [p.grad for p in model.parameters()]


def tensor_hooks(device: str) -> Any:
    x = X.to(device, copy=True).requires_grad_()
    x.register_hook(lambda grad: grad * 5)
    y = x.sin()
    y.retain_grad()
    y.grad_fn.register_prehook(lambda outputs: (outputs[0] * 2,))
    y.grad_fn.register_hook(lambda inputs, outputs: (inputs[0] + 1,))
    y.square().sum().backward()
    return x.grad, y.grad


def post_accumulate_hooks(device: str) -> Any:
    torch.manual_seed(1)
    model = torch.nn.Linear(3, 3).to(device)
    optimizers = {p: torch.optim.Adam([p], foreach=True) for p in model.parameters()}

    def step(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    for _ in range(3):
        model(X.to(device)).square().sum().backward()
    assert all(p.grad is None for p in model.parameters())
    return list(model.parameters())


def multi_grad_hook(device: str) -> Any:
    x, y = (X.to(device, copy=True).requires_grad_() for _ in range(2))
    seen: list[Any] = []
    register_multi_grad_hook([x, y], lambda grads: seen.extend(grads))
    (x * y).sin().sum().backward()
    return seen


def saved_tensors(device: str) -> Any:
    x = X.to(device, copy=True).requires_grad_()
    with saved_tensors_hooks(lambda t: t + 1, lambda t: t * 2):
        y = x.exp() * x
    y.sum().backward()
    return x.grad


def mutation_of_saved_tensors(device: str) -> Any:
    x = X.to(device, copy=True).requires_grad_()
    with allow_mutation_on_saved_tensors():
        w = x.clone()
        y = w.sin()
        w.zero_()
        y.sum().backward()
    return x.grad


class Scale(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, factor: float) -> Any:
        return x * factor, x.mean()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])
        ctx.factor = inputs[1]
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads[0] * ctx.factor + ctx.saved_tensors[0], None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return tangents[0] * ctx.factor, None


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        ctx.set_materialize_grads(False)
        return x.mul_(2)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 7


def functions(device: str) -> Any:
    x, y = (X.to(device, copy=True).requires_grad_() for _ in range(2))
    Scale.apply(x, 3.0)[0].sum().backward()
    Double.apply(y.clone()).sum().backward()
    rows = torch.func.vmap(lambda row: Scale.apply(row, 2.0)[0])(X.to(device))
    tangent = torch.func.jvp(lambda t: Scale.apply(t, 2.0)[0], (X.to(device),), (X.to(device),))
    return x.grad, y.grad, rows, tangent


CASES: dict[str, Callable[[str], Any]] = {
    "module": module_hooks,
    "tensor": tensor_hooks,
    "post accumulate": post_accumulate_hooks,
    "multi grad": multi_grad_hook,
    "saved tensors": saved_tensors,
    "mutation": mutation_of_saved_tensors,
    "functions": functions,
}


@pytest.mark.parametrize("case", CASES)
def test_hooks_and_functions_give_the_cpus_gradients(case: str) -> None:
    assert_same(CASES[case]("remote"), CASES[case]("cpu"))


@pytest.mark.parametrize("case", ["module", "tensor", "post accumulate", "functions"])
def test_hooks_and_functions_do_not_wait(case: str) -> None:
    CASES[case]("remote")
    with torch_remote.count() as counted:
        CASES[case]("remote")
    assert counted.syncs == 0


def test_state_dict_hooks_see_tensors_of_the_device() -> None:
    model = torch.nn.Linear(2, 2).to("remote")
    model.register_state_dict_post_hook(
        lambda module, state, prefix, local: state.update(more=torch.ones(1, device="remote"))
    )
    model.register_load_state_dict_pre_hook(
        lambda module, state, *args: state.pop("more", None) and None
    )
    state = model.state_dict()
    assert state["more"].device.type == "remote"
    model.load_state_dict(state)


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_anomaly_detection_finds_the_nan() -> None:
    x = torch.zeros(2, device="remote", requires_grad=True)
    with (
        torch.autograd.detect_anomaly(),
        pytest.raises(RuntimeError, match="returned nan values"),
        pytest.warns(UserWarning, match="Error detected in SqrtBackward0"),
    ):
        (x.sqrt() * 0).sum().backward()


@pytest.mark.parametrize("backward", ["backward", "grad"])
def test_a_hook_that_returns_a_tensor_of_the_cpu_is_refused_with_the_name_of_the_type(
    backward: str,
) -> None:
    x = torch.ones(2, device="remote", requires_grad=True)
    y = (x * 2).sum()
    x.register_hook(lambda grad: grad.cpu())
    with pytest.raises(RuntimeError, match="has changed the type of value") as raised:
        y.backward() if backward == "backward" else torch.autograd.grad(y, x)
    assert "was torch.remote.FloatTensor got " in str(raised.value)
    assert "remoteFloatType" not in str(raised.value)
