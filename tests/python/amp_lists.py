"""CUDA's autocast lists, read from the header of the installed torch, and a call of each operator.

`explicit()` computes on the CPU what an operator of a list gives, with the casts written out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

HEADER = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
LISTS = {
    "lower_precision_fp": "AT_FORALL_LOWER_PRECISION_FP",
    "fp32": "AT_FORALL_FP32",
    "fp32_set_opt_dtype": "AT_FORALL_FP32_SET_OPT_DTYPE",
    "promote": "AT_FORALL_PROMOTE",
}


def _policies() -> dict[str, str]:
    """The policy of each operator, such as `softmax.int`."""
    text = HEADER.read_text()
    found = dict.fromkeys(re.findall(r'"(norm\.\w+)"', text), "fp32_append_dtype")
    for policy, macro in LISTS.items():
        block = re.search(rf"#define {macro}\(_\)((?:.*\\\n)*.*)\n", text)
        assert block is not None, macro
        for name, overload in re.findall(r"_\((\w+)(?:, (\w+))?\)", block.group(1)):
            found[f"{name}.{overload}" if overload else name] = policy
    return found


POLICIES = _policies()
# CUDA's own block in ATen/autocast_mode.cpp has these too.
CUDNN = {"cudnn_convolution", "cudnn_convolution_transpose"}
BANNED = "binary_cross_entropy"


def rand(*shape: int) -> torch.Tensor:
    """Values that every operator accepts, also as a logarithm's or an arc sine's argument."""
    return torch.rand(*shape) * 0.8 + 0.1


def ints(*shape: int, high: int = 3) -> torch.Tensor:
    return torch.randint(high, shape)


def signs(*shape: int) -> torch.Tensor:
    return torch.rand(*shape).round() * 2 - 1


def _unary(*names: str) -> dict[str, Callable[[], tuple[Any, ...]]]:
    return dict.fromkeys(names, lambda: (rand(3, 4),))


def _pair(*names: str) -> dict[str, Callable[[], tuple[Any, ...]]]:
    return dict.fromkeys(names, lambda: (rand(3, 4), rand(3, 4)))


def _cell(gates: int) -> Callable[[], tuple[Any, ...]]:
    weights = (gates * 5, 4), (gates * 5, 5), (gates * 5,), (gates * 5,)
    return lambda: (rand(2, 4), rand(2, 5), *(rand(*shape) for shape in weights))


def _convolution(dims: int) -> Callable[[], tuple[Any, ...]]:
    return lambda: (rand(2, 3, *[6] * dims), rand(3, 3, *[3] * dims), rand(3))


def _whole_convolution(*more: Any) -> Callable[[], tuple[Any, ...]]:
    options = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1, *more)
    return lambda: (*_convolution(2)(), *options)


def _resize(dims: int, *options: Any) -> Callable[[], tuple[Any, ...]]:
    return lambda: (rand(2, 3, *[4] * dims), [7] * dims, *options, *[None] * dims)


# The arguments of one call of each operator: CPU tensors of float32 and of integers.
ARGUMENTS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "_convolution.deprecated": _whole_convolution(False, False, False),
    "_convolution": _whole_convolution(False, False, False, False),
    "convolution": _whole_convolution(),
    "conv1d": _convolution(1),
    "conv2d": _convolution(2),
    "conv3d": _convolution(3),
    "conv_tbc": lambda: (rand(6, 2, 3), rand(3, 3, 4), rand(4)),
    "conv_transpose1d": _convolution(1),
    "conv_transpose2d.input": _convolution(2),
    "conv_transpose3d.input": _convolution(3),
    "cudnn_convolution": lambda: (
        *_convolution(2)()[:2],
        *([0, 0], [1, 1], [1, 1], 1, False, False, False),
    ),
    "cudnn_convolution_transpose": lambda: (
        *_convolution(2)()[:2],
        *([0, 0], [0, 0], [1, 1], [1, 1], 1, False, False, False),
    ),
    "prelu": lambda: (rand(3, 4) - 0.5, rand(4)),
    "addmm": lambda: (rand(3, 5), rand(3, 4), rand(4, 5)),
    "addmv": lambda: (rand(3), rand(3, 4), rand(4)),
    "addr": lambda: (rand(3, 4), rand(3), rand(4)),
    "matmul": lambda: (rand(2, 3, 4), rand(4, 5)),
    "einsum": lambda: ("ij,jk->ik", [rand(3, 4), rand(4, 5)]),
    "mm": lambda: (rand(3, 4), rand(4, 5)),
    "mv": lambda: (rand(3, 4), rand(4)),
    "linear": lambda: (rand(3, 4), rand(5, 4), rand(5)),
    "addbmm": lambda: (rand(3, 5), rand(2, 3, 4), rand(2, 4, 5)),
    "baddbmm": lambda: (rand(2, 3, 5), rand(2, 3, 4), rand(2, 4, 5)),
    "bmm": lambda: (rand(2, 3, 4), rand(2, 4, 5)),
    "chain_matmul": lambda: ([rand(3, 4), rand(4, 5), rand(5, 2)],),
    "linalg_multi_dot": lambda: ([rand(3, 4), rand(4, 5), rand(5, 2)],),
    "_thnn_fused_lstm_cell": lambda: (rand(2, 20), rand(2, 20), rand(2, 5), rand(20), rand(20)),
    "_thnn_fused_gru_cell": lambda: (rand(2, 15), rand(2, 15), rand(2, 5), rand(15), rand(15)),
    "lstm_cell": lambda: (rand(2, 4), [rand(2, 5), rand(2, 5)], *_cell(4)()[2:]),
    "gru_cell": _cell(3),
    "rnn_tanh_cell": _cell(1),
    "rnn_relu_cell": _cell(1),
    "_scaled_dot_product_flash_attention": lambda: tuple(rand(2, 2, 8, 8) for _ in range(3)),
    "scaled_dot_product_attention": lambda: tuple(rand(2, 2, 8, 8) for _ in range(3)),
    **_unary("acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p"),
    **_unary("reciprocal", "rsqrt", "sinh", "tan", "softplus", "nuclear_norm", "pdist"),
    **_unary("prod", "linalg_vector_norm", "linalg_matrix_norm.str_ord", "sum"),
    **_pair("pow.Tensor_Tensor", "cosine_similarity", "kl_div", "l1_loss"),
    **_pair("smooth_l1_loss", "huber_loss", "mse_loss", "binary_cross_entropy_with_logits"),
    **_pair("dist", "cdist", "atan2", "linalg_vecdot"),
    "pow.Tensor_Scalar": lambda: (rand(3, 4), 2),
    "pow.Scalar": lambda: (2, rand(3, 4)),
    "layer_norm": lambda: (rand(3, 4), [4], rand(4), rand(4)),
    "native_layer_norm": lambda: (rand(3, 4), [4], rand(4), rand(4), 1e-5),
    "rms_norm": lambda: (rand(3, 4), [4], rand(4)),
    "group_norm": lambda: (rand(2, 4, 5), 2, rand(4), rand(4)),
    "frobenius_norm.dim": lambda: (rand(3, 4), [1]),
    "nuclear_norm.dim": lambda: (rand(2, 3, 4), [1, 2]),
    "cosine_embedding_loss": lambda: (rand(3, 4), rand(3, 4), signs(3)),
    "nll_loss": lambda: (rand(4, 3), ints(4)),
    "nll_loss2d": lambda: (rand(2, 3, 4, 4), ints(2, 4, 4)),
    "hinge_embedding_loss": lambda: (rand(3, 4), signs(3, 4)),
    "margin_ranking_loss": lambda: (rand(4), rand(4), signs(4)),
    "multilabel_margin_loss": lambda: (rand(2, 3), ints(2, 3)),
    "soft_margin_loss": lambda: (rand(3, 4), signs(3, 4)),
    "triplet_margin_loss": lambda: (rand(3, 4), rand(3, 4), rand(3, 4)),
    "multi_margin_loss": lambda: (rand(4, 3), ints(4)),
    "poisson_nll_loss": lambda: (rand(3, 4), rand(3, 4), True, False, 1e-8, 1),
    "renorm": lambda: (rand(3, 4), 2, 0, 1.0),
    "logsumexp": lambda: (rand(3, 4), [1]),
    "upsample_nearest1d": _resize(1),
    "_upsample_nearest_exact1d": _resize(1),
    "upsample_nearest2d": _resize(2),
    "_upsample_nearest_exact2d": _resize(2),
    "upsample_nearest3d": _resize(3),
    "_upsample_nearest_exact3d": _resize(3),
    "upsample_linear1d": _resize(1, False),
    "upsample_bilinear2d": _resize(2, False),
    "_upsample_bilinear2d_aa": _resize(2, False),
    "upsample_trilinear3d": _resize(3, False),
    "upsample_bicubic2d": _resize(2, False),
    "_upsample_bicubic2d_aa": _resize(2, False),
    "prod.dim_int": lambda: (rand(3, 4), 1),
    "softmax.int": lambda: (rand(3, 4), 1),
    "log_softmax.int": lambda: (rand(3, 4), 1),
    "cumprod": lambda: (rand(3, 4), 1),
    "cumsum": lambda: (rand(3, 4), 1),
    "linalg_matrix_norm": lambda: (rand(3, 4), 1),
    "sum.dim_IntList": lambda: (rand(3, 4), [1]),
    "norm.Scalar": lambda: (rand(3, 4),),
    "norm.ScalarOpt_dim": lambda: (rand(3, 4), 2, [1]),
    "addcdiv": lambda: (rand(3, 4), rand(3, 4), rand(3, 4)),
    "addcmul": lambda: (rand(3, 4), rand(3, 4), rand(3, 4)),
    "bilinear": lambda: (rand(3, 4), rand(3, 5), rand(2, 4, 5), rand(2)),
    "cross": lambda: (rand(4, 3), rand(4, 3)),
    "dot": lambda: (rand(4), rand(4)),
    "vdot": lambda: (rand(4), rand(4)),
    "grid_sampler": lambda: (rand(2, 3, 4, 4), rand(2, 5, 5, 2), 0, 0, False),
    "index_put": lambda: (rand(4, 3), [ints(2)], rand(2, 3)),
    "tensordot": lambda: (rand(3, 4), rand(4, 5), [1], [0]),
    "scatter_add": lambda: (rand(3, 4), 0, ints(3, 4), rand(3, 4)),
}

# The overloads with dimension names, which torch has until 2.12.
NAMED = re.compile(r"\.(\w*[Dd]imname\w*|names_.*)$")


def operator(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def is_eligible(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.is_floating_point()
        and value.dtype != torch.float64
    )


def cast(arguments: Any, dtype: torch.dtype) -> Any:
    """The arguments with every tensor that autocast casts in one dtype."""
    return tree_map(lambda leaf: leaf.to(dtype) if is_eligible(leaf) else leaf, arguments)


def explicit(name: str, arguments: tuple[Any, ...], fast: torch.dtype) -> Any:
    """The operator with the casts of its list."""
    policy = POLICIES[name]
    if policy == "lower_precision_fp":
        return operator(name)(*cast(arguments, fast))
    if policy == "fp32":
        return operator(name)(*cast(arguments, torch.float32))
    if policy == "promote":
        dtypes = {leaf.dtype for leaf in tree_leaves(arguments) if is_eligible(leaf)}
        return operator(name)(*cast(arguments, torch.float32 if dtypes - {fast} else fast))
    if policy == "fp32_append_dtype":
        scalar, *rest = arguments[1:] or (2,)
        return torch.norm(arguments[0], scalar, *rest, dtype=torch.float32)
    return operator(name)(*arguments, dtype=torch.float32)
