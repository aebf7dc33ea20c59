"""Autograd, modules and the waits of training with strided nested tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import DEVICE
from nested_parts import assert_both_same
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore")


def parts(lengths: tuple[int, ...] = (2, 5, 3)) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(length, 4, generator=generator) for length in lengths]


def leaf(device: str) -> torch.Tensor:
    return torch.nested.nested_tensor(parts(), device=device, requires_grad=True)


def attend(x: torch.Tensor, dropout: float = 0.0) -> torch.Tensor:
    heads = x.view(x.size(0), -1, 2, 2).transpose(1, 2).contiguous()
    mixed = F.scaled_dot_product_attention(heads, heads, heads, dropout_p=dropout)
    return mixed.transpose(1, 2).contiguous().view(x.size(0), -1, 4)


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "sin": torch.sin,
    "times_itself": lambda x: x * x + x,
    "divided": lambda x: x / 3 - 1,
    "matmul": lambda x: x @ x.transpose(1, 2),
    "bmm": lambda x: torch.bmm(x, x.transpose(1, 2)),
    "softmax": lambda x: torch.softmax(x, -1),
    "dropout": lambda x: F.dropout(x, 0.4),
    "sum": lambda x: x.sum(-1, keepdim=True),
    "select": lambda x: x[1],
    "view": lambda x: x.view(3, -1, 2, 2),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "clone": torch.clone,
    "to_dtype": lambda x: x.to(torch.float64),
    "attention": attend,
    "attention_dropped": lambda x: attend(x, 0.3),
}


def loss_of(result: torch.Tensor) -> torch.Tensor:
    flat = [part.reshape(-1) for part in (result.unbind() if result.is_nested else [result])]
    return torch.cat(flat).sin().sum()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_those_of_the_cpu(name: str) -> None:
    def run(device: str) -> Any:
        x = leaf(device)
        result = FUNCTIONS[name](x)
        loss_of(result).backward()
        return [result, x.grad]

    assert_both_same(run)


@pytest.mark.parametrize("lengths", [(2, 5, 3), (0, 0)])
@pytest.mark.parametrize("frozen", [False, True])
def test_layer_norm_has_gradients(lengths: tuple[int, ...], frozen: bool) -> None:
    def run(device: str) -> Any:
        norm = nn.LayerNorm(4).to(device).requires_grad_(not frozen)
        x = torch.nested.nested_tensor(parts(lengths), device=device, requires_grad=True)
        norm(x).values().sin().sum().backward()
        return [x.grad, norm.weight.grad, norm.bias.grad]

    assert_both_same(run)


def test_gradients_pass_through_padding_and_parts() -> None:
    def run(device: str) -> Any:
        leaves = [part.to(device).requires_grad_() for part in parts()]
        made = torch.nested.as_nested_tensor(leaves)
        (made * 2).to_padded_tensor(1.0).sin().sum().backward()
        return [part.grad for part in leaves]

    assert_both_same(run)


def test_gradients_pass_through_a_move() -> None:
    def run(device: str) -> Any:
        x = leaf("cpu")
        torch.sin(x.to(device)).cpu().to_padded_tensor(0.0).sum().backward()
        return x.grad

    assert_both_same(run)


class Block(nn.Module):
    """One block of a transformer, on nested tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix, self.out = nn.LayerNorm(4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.dropout(F.gelu(self.out(attend(self.mix(self.norm(x))))), 0.1, self.training)


def test_a_block_is_trained_as_on_the_cpu() -> None:
    def run(device: str) -> Any:
        model = nn.Sequential(Block(), Block()).to(device)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        losses = []
        torch.manual_seed(3)  # both devices draw the same dropout
        for lengths in ((2, 5, 3), (1, 4), (6, 2, 2, 1)):
            x = torch.nested.nested_tensor(parts(lengths), device=device)
            loss = model(x).to_padded_tensor(0.0).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss)
        return [losses, list(model.parameters())]

    assert_both_same(run)


def test_a_step_waits_for_nothing(sync_count: Callable[[Callable[[], object]], int]) -> None:
    """Also where every batch has other lengths."""
    model = Block().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(*lengths: int) -> None:
        x = torch.nested.nested_tensor(parts(lengths)).to(DEVICE)
        optimizer.zero_grad()
        model(x).to_padded_tensor(0.0).pow(2).mean().backward()
        optimizer.step()

    step(2, 5, 3)
    assert sync_count(lambda: step(2, 5, 3)) == 0
    step(4, 1)
    assert sync_count(lambda: [step(5, 2), step(3, 4, 1)]) == 0


# --- modules of PyTorch with a path for nested tensors

PADDING = torch.tensor([[False, False, False], [False, True, True]])


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_an_encoder_layer_takes_nested_input(norm_first: bool, activation: str) -> None:
    def run(device: str) -> torch.Tensor:
        layer = nn.TransformerEncoderLayer(
            4, 2, 8, batch_first=True, norm_first=norm_first, activation=activation
        )
        with torch.no_grad():
            return layer.to(device).eval()(leaf(device))

    assert_both_same(run)


@pytest.mark.parametrize("nests", [True, False])
def test_an_encoder_nests_padded_input(nests: bool) -> None:
    def run(device: str) -> torch.Tensor:
        layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nests).to(device).eval()
        x = torch.arange(24.0).reshape(2, 3, 4).to(device) / 7
        with torch.no_grad():
            return encoder(x, src_key_padding_mask=PADDING.to(device))

    assert_both_same(run)


@pytest.mark.parametrize("need_weights", [False, True])
def test_multihead_attention_takes_nested_input(need_weights: bool) -> None:
    def run(device: str) -> Any:
        attention = nn.MultiheadAttention(4, 2, batch_first=True).to(device).eval()
        x = leaf(device).detach()
        with torch.no_grad():
            return list(attention(x, x, x, need_weights=need_weights))

    assert_both_same(run)


def test_attention_between_two_nested_inputs_is_refused_as_on_the_cpu() -> None:
    def message(device: str) -> str:
        attention = nn.MultiheadAttention(4, 2, batch_first=True).to(device).eval()
        with torch.no_grad(), pytest.raises(Exception) as caught:
            attention(leaf(device), leaf(device) * 2, leaf(device) * 3, need_weights=False)
        return f"{type(caught.value).__name__}: {caught.value}"

    assert message(DEVICE) == message("cpu")


LACKING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "tanh": torch.tanh,
    "chunk": lambda x: x.chunk(2, -1)[1].contiguous(),
    "cat": lambda x: torch.cat([x, x]),
}


@pytest.mark.parametrize("name", LACKING)
def test_a_gradient_that_pytorch_lacks_is_refused_as_on_the_cpu(name: str) -> None:
    def kind(device: str) -> type[BaseException]:
        with pytest.raises(Exception) as caught:
            loss_of(LACKING[name](leaf(device))).backward()
        return caught.type

    assert kind(DEVICE) is kind("cpu")


def test_autocast_takes_nested_input() -> None:
    layer = nn.Linear(4, 4).to(DEVICE)
    with torch.autocast(torch.device(DEVICE).type, torch.bfloat16):
        result = layer(leaf(DEVICE))
    assert result.dtype == torch.bfloat16
    loss_of(result.float()).backward()
    assert layer.weight.grad is not None
