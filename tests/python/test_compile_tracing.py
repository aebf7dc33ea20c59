"""While PyTorch traces, a remote tensor is predicted to be what it is on the server's device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compile_parts import forget_what_was_compiled  # noqa: F401
from helpers import DEVICE
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._pytree import tree_leaves, tree_map

from torch_remote import _fake_tensors

Tensor = torch.Tensor
functional = nn.functional


def channels_last(*sizes: int) -> Tensor:
    return torch.randn(*sizes).to(memory_format=torch.channels_last)


def batch_norm(x: Tensor, is_training: bool) -> tuple[Tensor, ...]:
    statistics = torch.zeros(3, device=x.device), torch.ones(3, device=x.device)
    return torch.native_batch_norm(x, None, None, *statistics, is_training, 0.1, 1e-5)


CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "conv2d": (functional.conv2d, (channels_last(2, 3, 5, 5), torch.randn(4, 3, 3, 3))),
    "channels last in the weight": (
        functional.conv2d,
        (torch.randn(2, 3, 5, 5), channels_last(4, 3, 3, 3)),
    ),
    "conv1d": (functional.conv1d, (torch.randn(2, 5, 3).mT, torch.randn(4, 3, 3))),
    "transposed": (
        functional.conv_transpose2d,
        (channels_last(2, 3, 5, 5), torch.randn(3, 4, 3, 3)),
    ),
    "layer norm": (
        lambda x: torch.native_layer_norm(x, (4,), None, None, 1e-5),
        (torch.randn(2, 4).bfloat16(),),
    ),
    "batch norm, training": (lambda x: batch_norm(x, True), (torch.randn(2, 3, 4),)),
    "batch norm, evaluation": (lambda x: batch_norm(x, False), (torch.randn(2, 3, 4),)),
    "pixel shuffle": (lambda x: functional.pixel_shuffle(x, 2), (channels_last(1, 8, 2, 2),)),
}


def predicted(function: Callable[..., Any], given: tuple[Tensor, ...], device: str) -> list[Any]:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    fakes = tree_map(lambda tensor: mode.from_tensor(tensor.to(device)), given)
    with mode:
        made = tree_leaves(function(*fakes))
    assert all(tensor.device.type == device for tensor in made)
    return [_described(tensor) for tensor in made]


def _described(tensor: Tensor) -> Any:
    return tensor.dtype, tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride()))


@pytest.mark.parametrize("case", CASES)
def test_a_prediction_is_that_of_the_servers_device_and_what_a_call_makes(case: str) -> None:
    function, given = CASES[case]
    found = predicted(function, given, DEVICE)
    assert found == predicted(function, given, "cpu")
    made = tree_leaves(function(*(tensor.to(DEVICE) for tensor in given)))
    assert found == [_described(tensor) for tensor in made]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("is_weight", [False, True], ids=["image", "weight"])
def test_on_cuda_a_convolution_keeps_channels_last_where_cudnn_does(
    is_weight: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_fake_tensors, "_kind", lambda device: "cuda")
    image, weight = torch.randn(2, 3, 5, 5, dtype=dtype), torch.randn(4, 3, 3, 3, dtype=dtype)
    if is_weight:
        weight = weight.to(memory_format=torch.channels_last)
    else:
        image = image.to(memory_format=torch.channels_last)
    ((_, _, strides),) = predicted(functional.conv2d, (image, weight), DEVICE)
    assert strides == ((36, 1, 12, 4) if dtype == torch.float32 else (36, 9, 3, 1))


class Reducing(nn.Module):
    """Attention over a smaller image, as SegFormer's: the layout of the image decides its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(8, 8, 8, stride=8)
        self.norm = nn.LayerNorm(8)
        self.out = nn.Linear(8, 8)
        self.head = nn.Sequential(
            nn.Conv2d(8, 5, 1), nn.BatchNorm2d(5), nn.Upsample(scale_factor=2)
        )

    def forward(self, image: Tensor, mask: Tensor) -> Tensor:
        tokens = image.flatten(2).transpose(1, 2)
        fewer = self.reduce(tokens.transpose(1, 2).view(image.shape)).flatten(2).transpose(1, 2)
        fewer = self.out(self.norm(fewer))[:, None]
        mixed = functional.scaled_dot_product_attention(tokens[:, None], fewer, fewer, mask)
        back = self.out(mixed[:, 0].transpose(1, 2).contiguous().transpose(1, 2))
        result: Tensor = self.head(back.transpose(1, 2).view(image.shape))
        return result.log_softmax(1).sum()


def _results(node: Node) -> list[Any]:
    values = tree_leaves(node.meta["val"])
    return [_described(value) for value in values if isinstance(value, Tensor)]


def graphs_on(device: str) -> list[list[str]]:
    """The graphs of a step: each result with its operator, size and strides."""
    found: list[list[str]] = []

    def keep(graph: GraphModule, inputs: Any) -> Any:
        nodes = [node for node in graph.graph.nodes if node.op == "call_function"]
        found.append([f"{node.target} {_results(node)}" for node in nodes])
        return graph.forward

    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Reducing().to(device)
    image = torch.randn(2, 8, 8, 8).to(device=device, memory_format=torch.channels_last)
    mask = torch.ones(2, 1, 64, 1, dtype=torch.bool, device=device)
    torch.compile(model, backend=aot_autograd(fw_compiler=keep))(image, mask).backward()
    return found


def test_the_graphs_of_a_step_are_those_of_the_servers_device() -> None:
    assert graphs_on(DEVICE) == graphs_on("cpu")
