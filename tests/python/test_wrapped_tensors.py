"""Tensors that only stand for remote ones: functorch's wrappers, fake tensors, subclasses.

The conformance suites functorch, compile, export and trace run PyTorch's samples through these.
Here are cases of kernels that branch on the server's device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import DEVICE, assert_runs, assert_same, moved
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vmap
from torch.nn import functional

import torch_remote

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "batch_norm": lambda: nn.BatchNorm1d(4, track_running_stats=False),
    "conv": lambda: nn.Conv1d(4, 3, 2),
    "group_norm": lambda: nn.GroupNorm(2, 4),
    "gru": lambda: nn.GRU(8, 5),
    "lstm": lambda: nn.LSTM(8, 5),
    "max_pool": lambda: nn.MaxPool1d(2),
    "rms_norm": lambda: nn.RMSNorm(8),
    "rnn": lambda: nn.RNN(8, 5),
    "softmax": lambda: nn.Softmax(-1),
    "transformer": lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0),
}


def _loss(layer: nn.Module) -> Callable[[Any, Tensor], Tensor]:
    def loss(parameters: Any, value: Tensor) -> Tensor:
        result = functional_call(layer, parameters, (value,))
        return (result[0] if isinstance(result, tuple) else result).square().sum()

    return loss


@pytest.mark.parametrize("name", LAYERS)
def test_torch_func_grad_of_a_layer_is_the_cpus(name: str) -> None:
    torch.manual_seed(0)
    layer = LAYERS[name]()
    value = torch.randn(2, 4, 8)
    parameters = dict(layer.named_parameters())
    expected = grad(_loss(layer), argnums=(0, 1))(parameters, value)
    layer.to(DEVICE)
    there = dict(layer.named_parameters())
    assert_same(grad(_loss(layer), argnums=(0, 1))(there, value.to(DEVICE)), expected)


TRANSFORMS: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Any]] = {
    "grad": lambda f, x: grad(lambda y: f(y).sum())(x),
    "jvp": lambda f, x: jvp(f, (x,), (x.cos(),)),
    "jacrev": lambda f, x: jacrev(f)(x),
    "jacfwd": lambda f, x: jacfwd(f)(x),
    "hessian": lambda f, x: hessian(lambda y: f(y).square().sum())(x),
    "vmap of grad": lambda f, x: vmap(grad(lambda y: f(y).sum()))(torch.stack([x, x + 1])),
    "vmap of jvp": lambda f, x: vmap(lambda y: jvp(f, (y,), (y,)))(torch.stack([x, x + 1])),
}
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "rms_norm": lambda x: functional.rms_norm(x, (4,)),
    "group_norm": lambda x: functional.group_norm(x, 3),
    "attention": lambda x: functional.scaled_dot_product_attention(x, x, x),
    "max_pool1d": lambda x: functional.max_pool1d(x, 2),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_transforms_of_our_kernels_are_the_cpus(function: str, transform: str) -> None:
    value = torch.randn(2, 3, 4)
    run = TRANSFORMS[transform]
    expected = run(FUNCTIONS[function], value)
    assert_same(run(FUNCTIONS[function], value.to(DEVICE)), expected)


def test_per_sample_gradients_of_a_small_network_are_the_cpus() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(144, 3))
    images, labels = torch.randn(5, 1, 8, 8), torch.arange(5) % 3

    def run(net: nn.Module, images: Tensor, labels: Tensor) -> Any:
        def loss(parameters: Any, image: Tensor, label: Tensor) -> Tensor:
            logits = functional_call(net, parameters, (image[None],))
            return functional.cross_entropy(logits, label[None])

        parameters = {name: p.detach() for name, p in net.named_parameters()}
        return vmap(grad(loss), in_dims=(None, 0, 0))(parameters, images, labels)

    expected = run(net, images, labels)
    assert_same(run(net.to(DEVICE), *moved((images, labels))), expected)


def test_forward_mode_keeps_the_sign_of_zero() -> None:
    """Zero tangents are left out rather than added, as locally: x + 0 loses the sign of -0."""

    def run(device: str) -> Any:
        value = torch.tensor([1.0, 2.0], device=device)
        tangent = torch.tensor([-0.0, 0.0], device=device)
        return jvp(lambda x: x + torch.ones(2, device=device), (value,), (tangent,))

    assert_same(run(DEVICE), run("cpu"))


def test_a_tensor_of_zeros_without_memory_can_be_used() -> None:
    zeros = torch._efficientzerotensor((2, 3), device=DEVICE)
    assert zeros._is_zerotensor()
    assert_same(zeros.clone(), torch.zeros(2, 3))
    assert_same(zeros.t().cpu(), torch.zeros(3, 2))
    assert_same(torch.ones(2, 3, device=DEVICE).copy_(zeros), torch.zeros(2, 3))
    assert_same(zeros.sum(), torch.zeros(()))
    assert "0." in repr(zeros)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_runs_on_fake_tensors_and_reaches_no_server(name: str) -> None:
    layer = LAYERS[name]().to(DEVICE)
    real = torch.randn(2, 4, 8, device=DEVICE)
    expected = layer(real)
    torch_remote.synchronize()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch_remote.count() as counted:
        result = layer(mode.from_tensor(real))
    for mine, other in zip(
        torch.utils._pytree.tree_leaves(result),
        torch.utils._pytree.tree_leaves(expected),
        strict=True,
    ):
        assert (mine.shape, mine.stride(), mine.device) == (
            other.shape,
            other.stride(),
            other.device,
        )
    assert counted.calls == 0
    assert_same(layer(real), expected)  # the real tensors are unchanged


def test_an_operator_on_a_tensor_without_memory_says_so() -> None:
    class Hollow(Tensor):
        @classmethod
        def __torch_dispatch__(cls, *_: Any) -> Any:
            raise AssertionError("not reached")

    hollow = Tensor._make_wrapper_subclass(Hollow, (2,), device=f"{DEVICE}:0")
    with (
        pytest.raises((NotImplementedError, RuntimeError), match="this is a wrapper"),
        torch._C._DisableTorchDispatch(),
    ):
        torch.relu(hollow)


def test_a_subclass_that_wraps_a_remote_tensor_reaches_its_own_dispatch() -> None:
    assert_runs(
        f"""
        import torch, torch_remote
        from torch.nn import functional
        from torch.testing._internal.two_tensor import TwoTensor

        a, b = torch.randn(2, 4, 8), torch.randn(2, 4, 8)
        there = TwoTensor(a.to("{DEVICE}"), b.to("{DEVICE}"))
        for function in (
            lambda x: functional.rms_norm(x, (8,)),
            lambda x: functional.group_norm(x, 2),
            lambda x: functional.max_pool1d(x, 2),
            lambda x: functional.scaled_dot_product_attention(x, x, x),
        ):
            result = function(there)
            assert torch.equal(result.a.cpu(), function(a))
            assert torch.equal(result.b.cpu(), function(b))
        """
    )
