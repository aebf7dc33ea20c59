"""Attention between jagged nested tensors.

PyTorch's Python chooses a kernel by CUDA in this process; here the server's device decides.
PyTorch's "math" attention reads every length of a batch by itself, with a wait for each; here the
lengths are read together, and it is composed of the dense operators that PyTorch's CPU kernels for
strided nested tensors call.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import torch
from torch import Tensor

from ._backend import is_ours
from ._device import get_device_properties
from ._patches import change_module, patch

_AMPERE = 8  # major compute capability with flash attention


def _parts(jagged: Any) -> list[Tensor]:
    """The sequences of a jagged (batch, heads, ragged, width), each as (heads, length, width)."""
    offsets = jagged.offsets().tolist()
    values = jagged.transpose(1, 2).values()
    return [
        values[start:end].transpose(0, 1).contiguous() for start, end in itertools.pairwise(offsets)
    ]


def _drop(parts: list[Tensor], probability: float) -> list[Tensor]:
    """One dropout over all parts: random numbers in the order of the nested tensor's memory."""
    if probability == 0:
        return parts
    dropped = torch.dropout(torch.cat([part.flatten() for part in parts]), probability, True)
    pieces = dropped.split([part.numel() for part in parts])
    return [piece.view(part.shape) for piece, part in zip(pieces, parts, strict=True)]


def _math_attention(
    query: Any, key: Any, value: Any, dropout_p: float, scale: float | None
) -> Tensor:
    from torch.nested._internal.nested_tensor import nested_view_from_values_offsets_lengths

    heads = {jagged.size(1) for jagged in (query, key, value)}
    if len(heads) > 1:
        raise RuntimeError(
            "matmul: For nested tensors, batch dimensions must have the same sizes, no "
            "broadcasting is currently performed. "
            f"Got {' and '.join(map(str, sorted(heads)))} heads"
        )
    whole = 1 / math.sqrt(query.size(-1)) if scale is None else scale
    factor = math.sqrt(abs(whole))
    weights = [
        torch.softmax((q * math.copysign(factor, whole)) @ (k.mT * factor), -1)
        for q, k in zip(_parts(query), _parts(key), strict=True)
    ]
    mixed = map(torch.matmul, _drop(weights, dropout_p), _parts(value))
    result = nested_view_from_values_offsets_lengths(
        torch.cat([part.transpose(0, 1) for part in mixed]),
        query.offsets(),
        lengths=query.lengths(),
        min_seqlen=query._maybe_min_seqlen,
        max_seqlen=query._maybe_max_seqlen,
    )
    return result.transpose(1, 2)


def _has_flash(query: Any) -> bool:
    """Whether the server's CUDA device has flash attention for this dtype and it is enabled."""
    half = query.dtype in (torch.float16, torch.bfloat16)
    is_new = get_device_properties(query.device).major >= _AMPERE
    return bool(half and is_new and torch.backends.cuda.flash_sdp_enabled())


def _has_efficient(query: Any) -> bool:
    """As `_has_flash`, for memory-efficient attention."""
    return bool(query.dtype != torch.float64 and torch.backends.cuda.mem_efficient_sdp_enabled())


class _MathAttention(Exception):
    """Carries query, key and value when PyTorch has chosen its math attention."""


def _change_choice(sdpa: Any) -> None:
    """Makes PyTorch's function for jagged tensors choose as the server's device would."""
    select = sdpa._select_sdp_backend
    kinds = sdpa.SDPBackend

    def on_server(query: Any, key: Any, value: Any, *others: Any) -> Any:
        arguments = (query, key, value, *others)
        if get_device_properties(query.device).kind == "cpu":
            return select(*arguments)
        params = sdpa.SDPAParams(*arguments)
        if _has_flash(query) and sdpa._can_use_flash_sdpa_jagged(params):
            return kinds.FLASH_ATTENTION
        if _has_efficient(query) and sdpa._can_use_efficient_sdpa_jagged(params):
            return kinds.EFFICIENT_ATTENTION
        return select(*arguments)

    @functools.wraps(select)
    def selected(query: Any, key: Any, value: Any, *others: Any) -> Any:
        if not is_ours(query):
            return select(query, key, value, *others)
        choice = on_server(query, key, value, *others)
        if choice == kinds.MATH:
            raise _MathAttention(query, key, value)
        return choice

    patch(sdpa, "_select_sdp_backend", selected)


def _change_operators(operators: Any) -> None:
    """Makes our jagged tensors use the math attention of this file."""
    from torch.nested._internal import sdpa

    _change_choice(sdpa)
    attention = operators.jagged_scaled_dot_product_attention

    @functools.wraps(attention)
    def attend(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        try:
            return attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        except _MathAttention as way:
            query, key, value = way.args  # as PyTorch has prepared them
            return _math_attention(query, key, value, dropout_p, scale)

    patch(operators, "jagged_scaled_dot_product_attention", attend)


def install() -> None:
    """Patches PyTorch's code for jagged tensors when it is imported."""
    change_module("torch.nested._internal.ops", _change_operators)
