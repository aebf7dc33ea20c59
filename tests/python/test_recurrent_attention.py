"""Recurrent layers, attention and dropout take the server's branch and give the CPU's bits."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import DEVICE, assert_gradients_match_cpu, assert_same
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

LAYERS = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}
CELLS = {"lstm": nn.LSTMCell, "gru": nn.GRUCell, "rnn": nn.RNNCell}


def train_once(
    make: Callable[[], nn.Module], run: Callable[[nn.Module, torch.Tensor], Any], x: torch.Tensor
) -> None:
    """Forward and backward of a module, on the CPU and on the device, from the same weights."""

    def once(device: str) -> Any:
        torch.manual_seed(3)
        module = make().to(device)
        inputs = x.detach().to(device, copy=True).requires_grad_()
        torch.manual_seed(4)
        output = run(module, inputs)
        leaves = torch.utils._pytree.tree_leaves(output)
        sum(leaf.square().sum() for leaf in leaves if leaf.requires_grad).backward()
        return [output, inputs.grad, [parameter.grad for parameter in module.parameters()]]

    assert_same(once(DEVICE), once("cpu"))


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_layers": 2},
        {"bidirectional": True},
        {"batch_first": True},
        {"bias": False},
        {"num_layers": 2, "dropout": 0.5},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
def test_layers_match_the_cpu_forward_and_backward(kind: str, options: dict[str, Any]) -> None:
    train_once(lambda: LAYERS[kind](5, 6, **options), lambda m, x: m(x), torch.randn(4, 3, 5))


def test_an_lstm_with_projections_matches_the_cpu() -> None:
    train_once(lambda: nn.LSTM(5, 6, proj_size=2), lambda m, x: m(x), torch.randn(4, 3, 5))


@pytest.mark.parametrize("kind", LAYERS)
def test_evaluation_without_gradients_matches_the_cpu(kind: str) -> None:
    layer = LAYERS[kind](5, 6, num_layers=2).eval()
    x = torch.randn(4, 3, 5)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            expected = layer.cpu()(x)
            actual = layer.to(DEVICE)(x.to(DEVICE))
            assert_same(
                torch.utils._pytree.tree_map(torch.clone, actual),
                torch.utils._pytree.tree_map(torch.clone, expected),
            )


@pytest.mark.parametrize("kind", LAYERS)
def test_packed_sequences_of_one_length_match_the_cpu(kind: str) -> None:
    def run(layer: nn.Module, x: torch.Tensor) -> Any:
        output, state = layer(pack_padded_sequence(x, torch.tensor([4, 4, 4])))
        return [pad_packed_sequence(output)[0], state]

    train_once(lambda: LAYERS[kind](5, 6), run, torch.randn(4, 3, 5))


@pytest.mark.parametrize("kind", LAYERS)
def test_packed_sequences_match_the_cpu(kind: str) -> None:
    def run(layer: nn.Module, x: torch.Tensor) -> Any:
        packed = pack_padded_sequence(x, torch.tensor([4, 2, 1]))
        output, state = layer(packed)
        return [pad_packed_sequence(output)[0], state]

    train_once(lambda: LAYERS[kind](5, 6), run, torch.randn(4, 3, 5))


@pytest.mark.parametrize("kind", CELLS)
def test_cells_match_the_cpu_forward_and_backward(kind: str) -> None:
    def run(cell: nn.Module, x: torch.Tensor) -> Any:
        state, states = None, []
        for step in x:
            state = cell(step, state)
            states.append(state)
        return states

    train_once(lambda: CELLS[kind](5, 6), run, torch.randn(4, 3, 5))


def attention_inputs(*, heads: int = 2, length: int = 6, keys: int = 6) -> list[torch.Tensor]:
    shapes = [(3, heads, length, 8), (3, heads, keys, 8), (3, heads, keys, 8)]
    return [torch.randn(shape).requires_grad_() for shape in shapes]


ATTENTION: dict[str, Callable[[Any, Any, Any], Any]] = {
    "plain": F.scaled_dot_product_attention,
    "causal": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    "scaled": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.3),
    "bool_mask": lambda q, k, v: F.scaled_dot_product_attention(
        q, k, v, torch.ones(6, 6, dtype=torch.bool, device=q.device).tril()
    ),
    "float_mask": lambda q, k, v: F.scaled_dot_product_attention(
        q, k, v, torch.linspace(-1, 1, 36).reshape(6, 6).to(q.device)
    ),
    "masked_row": lambda q, k, v: F.scaled_dot_product_attention(
        q, k, v, torch.arange(6, device=q.device)[:, None].expand(6, 6) > 0
    ),
    "dropout": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.3),
    "strided": lambda q, k, v: F.scaled_dot_product_attention(q.mT.contiguous().mT, k, v),
    "three_dims": lambda q, k, v: F.scaled_dot_product_attention(q[0], k[0], v[0]),
}


@pytest.mark.parametrize("variant", ATTENTION)
@pytest.mark.parametrize("backend", [None, SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], ids=str)
def test_attention_matches_the_cpu_forward_and_backward(
    variant: str, backend: SDPBackend | None
) -> None:
    if backend is SDPBackend.FLASH_ATTENTION and variant in {"dropout", "strided", "three_dims"}:
        pytest.skip("flash attention on the CPU takes no dropout, odd strides or three dimensions")
    with sdpa_kernel(backend) if backend is not None else contextlib.nullcontext():
        assert_gradients_match_cpu(ATTENTION[variant], *attention_inputs())


def test_attention_over_a_longer_cache_matches_the_cpu() -> None:
    inputs = attention_inputs(length=1, keys=9)
    assert_gradients_match_cpu(F.scaled_dot_product_attention, *inputs)


def test_grouped_query_attention_matches_the_cpu() -> None:
    query = torch.randn(2, 4, 5, 8, requires_grad=True)
    key, value = (torch.randn(2, 2, 5, 8, requires_grad=True) for _ in range(2))

    def run(q: Any, k: Any, v: Any) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    assert_gradients_match_cpu(run, query, key, value)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_attention_in_other_dtypes_matches_the_cpu(dtype: torch.dtype) -> None:
    inputs = [x.detach().to(dtype).requires_grad_() for x in attention_inputs()]
    assert_gradients_match_cpu(ATTENTION["causal"], *inputs)


def test_multi_head_attention_matches_the_cpu() -> None:
    def run(module: nn.Module, x: torch.Tensor) -> Any:
        return [*module(x, x, x), module(x, x, x, need_weights=False)[0]]

    train_once(lambda: nn.MultiheadAttention(8, 2, dropout=0.1), run, torch.randn(5, 3, 8))


@pytest.mark.parametrize("training", [True, False])
def test_a_transformer_encoder_matches_the_cpu(training: bool) -> None:
    def make() -> nn.Module:
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train(training)

    train_once(make, lambda m, x: m(x), torch.randn(3, 5, 8))


@pytest.mark.parametrize("layout", ["as it is", "swapped", "reversed", "a slice", "one row"])
def test_the_fast_path_of_an_encoder_layer_has_the_cpus_strides(layout: str) -> None:
    """PyTorch's shape function gives the result the strides of the input."""
    changes: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "as it is": lambda x: x,
        "swapped": lambda x: x.transpose(0, 1),
        "reversed": lambda x: x.permute(2, 1, 0).contiguous().permute(2, 1, 0),
        "a slice": lambda x: x[:, ::2],
        "one row": lambda x: x[:, :1].transpose(0, 1),
    }
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    there = copy.deepcopy(layer).to("remote")
    x = torch.randn(3, 5, 8)
    with torch.no_grad():
        local, remote = layer(changes[layout](x)), there(changes[layout](x.to("remote")))
    assert_same(remote, local)
    assert remote.stride() == local.stride()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize(
    "function", [F.dropout, F.alpha_dropout, F.dropout1d], ids=lambda f: f.__name__
)
def test_dropout_with_a_seed_matches_the_cpu(
    function: Callable[..., Any], dtype: torch.dtype
) -> None:
    x = torch.randn(4, 8, 16, dtype=dtype).requires_grad_()
    assert_gradients_match_cpu(lambda a: function(a, 0.3, training=True), x)


@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_attention_of_one_token_has_the_cpus_strides(dtype: torch.dtype, length: int) -> None:
    def attend(x: torch.Tensor) -> torch.Tensor:
        heads = [part.view(2, length, 2, 4).transpose(1, 2) for part in x.split(8, 2)]
        query, key, value = heads
        return F.scaled_dot_product_attention(
            query, torch.cat([key, key], 2), value.repeat(1, 1, 2, 1)
        )

    x = torch.randn(2, length, 24).to(dtype)
    local = x.clone().requires_grad_()
    there = x.to("remote").requires_grad_()
    assert_same(attend(there), attend(local))
    attend(local).sum().backward()
    attend(there).sum().backward()
    assert_same(there.grad, local.grad)
