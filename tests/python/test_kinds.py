"""Every dtype, memory format and conj or neg view gives what it gives on the CPU, or its error."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import DEVICE, assert_matches_cpu, assert_same, moved
from torch.utils._pytree import tree_leaves

Function = Callable[..., Any]

DTYPES = sorted(
    {
        value
        for value in vars(torch).values()
        if isinstance(value, torch.dtype) and not str(value).startswith(("torch.q", "torch.bits"))
    }
    - {getattr(torch, f"{sign}int{bits}") for sign in ("", "u") for bits in range(1, 8)}
    - {getattr(torch, "float4_e2m1fn_x2", None)},  # the CPU cannot convert to it
    key=str,
)


def outcome(function: Function, *arguments: Any) -> list[Any]:
    """The results with their layouts, or the error's text, raised by the read at the latest."""
    try:
        results = tree_leaves(function(*arguments))
        return [describe(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in results]
    except (RuntimeError, TypeError, IndexError) as error:
        late = rf"^aten::\S+ on {DEVICE}:0 \(.*?\)(, called at \S+ in \S+)?: "
        text = re.sub(late, "", str(error))
        return [text.replace(f"{DEVICE}:0", "cpu")]


def describe(tensor: torch.Tensor) -> Any:
    return [tensor.detach().cpu(), tensor.stride(), tensor.is_conj(), tensor.is_neg()]


def assert_same_kind(function: Function, *arguments: Any) -> None:
    there = moved(arguments)
    expected = outcome(function, *arguments)
    assert_same(outcome(function, *there), expected)


OPERATIONS: dict[str, Function] = {
    "clone": lambda x, y: x.clone(),
    "view_and_write": lambda x, y: [x[:, 1].fill_(1), x],
    "copy": lambda x, y: x.mT.contiguous().copy_(y.mT),
    "to_float": lambda x, y: x.to(torch.float32),
    "to_int": lambda x, y: x.to(torch.int64),
    "to_bool": lambda x, y: x.bool(),
    "to_complex": lambda x, y: x.to(torch.complex64),
    "add": lambda x, y: x + y,
    "mul_number": lambda x, y: x * 2,
    "div": lambda x, y: x / y,
    "eq": lambda x, y: x == y,
    "lt": lambda x, y: x < y,
    "bitwise": lambda x, y: x & y,
    "sum": lambda x, y: x.sum(),
    "mean": lambda x, y: x.mean(0),
    "max": lambda x, y: x.max(),
    "sort": lambda x, y: x.sort(),
    "cumsum": lambda x, y: x.cumsum(0),
    "matmul": lambda x, y: x @ y.mT,
    "cat": lambda x, y: torch.cat([x, y]),
    "where": lambda x, y: torch.where(x == y, x, y),
    "index": lambda x, y: x[torch.tensor([1, 0], device=x.device)],
    "index_put": lambda x, y: x.index_put_((torch.tensor([1], device=x.device),), y[:1]),
    "masked_fill": lambda x, y: x.masked_fill(x == y, 1),
    "exp": lambda x, y: x.exp(),
    "abs": lambda x, y: x.abs(),
    "nonzero": lambda x, y: x.nonzero(),
    "add_out": lambda x, y: torch.add(x, y, out=torch.empty_like(x)),
    "print": lambda x, y: repr(x).replace(f", device='{x.device}'", "").split(),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_dtype_behaves_as_on_the_cpu(dtype: torch.dtype) -> None:
    x = torch.tensor([[0, 1, 2], [3, 1, 0]]).to(dtype)
    y = torch.tensor([[1, 1, 3], [3, 2, 1]]).to(dtype)
    for name, operation in OPERATIONS.items():
        try:
            assert_same_kind(operation, x.clone(), y.clone())
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error


CONJ_AND_NEG: dict[str, Function] = {
    "views": lambda z: [z.conj(), z.conj().imag, z.mH, z.conj().conj(), torch._neg_view(z)],
    "arithmetic": lambda z: [z.conj() + z, z.conj() @ z, z.conj().imag * 2, z.mH @ z],
    "dot": lambda z: [
        f(x, y)
        for f in (torch.dot, torch.vdot)
        for x in (z[0], z[0].conj())
        for y in (z[1], z[1].conj())
    ],
    "resolve": lambda z: [z.conj().resolve_conj(), z.conj().imag.resolve_neg()],
    "clone": lambda z: [z.conj().clone(), z.conj().imag.clone(), z.mH.contiguous()],
    "write": lambda z: [z.conj().fill_(1 + 2j), z.conj().imag.add_(3), z],
    "copy_into": lambda z: [
        torch.empty_like(z).copy_(z.conj()),
        torch.zeros_like(z).conj().copy_(z),
    ],
    "out": lambda z: [torch.mul(z, 2, out=torch.empty_like(z).conj()), z],
    "out_neg": lambda z: torch.mul(z.real, 2, out=torch.empty_like(z).conj().imag),
    "cat": lambda z: torch.cat([z.conj(), z]),
    "to_host_and_back": lambda z: [
        z.conj().to("cpu", copy=True),
        z.mH.imag.to("cpu", copy=True).to(z.device, copy=True),
    ],
    "index": lambda z: z.conj()[torch.tensor([1], device=z.device)],
    "item": lambda z: [z.conj()[0, 1].item(), z.conj().imag[0, 1].item(), z.mH.tolist()],
    "print": lambda z: repr(z.conj().imag).replace(f", device='{z.device}'", "").split(),
}


@pytest.mark.parametrize("name", CONJ_AND_NEG)
def test_conj_and_neg_views_behave_as_on_the_cpu(name: str) -> None:
    z = torch.complex(torch.arange(9.0).reshape(3, 3), torch.ones(3, 3))
    assert_same_kind(CONJ_AND_NEG[name], z)


def weights(x: torch.Tensor, *shape: int) -> torch.Tensor:
    return torch.ones(*shape, device=x.device) / 7


IMAGES: dict[str, Function] = {
    "conv": lambda x: F.conv2d(x, weights(x, 4, 3, 3, 3)),
    "conv_transpose": lambda x: F.conv_transpose2d(x, weights(x, 3, 2, 3, 3)),
    "max_pool": lambda x: F.max_pool2d(x, 2),
    "avg_pool": lambda x: F.avg_pool2d(x, 2),
    "adaptive_pool": lambda x: F.adaptive_avg_pool2d(x, 3),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    # Its backward formula branches on the device; except on the CPU it makes all contiguous.
    "group_norm_forward": lambda x: [F.group_norm(x.detach(), 3), x * 2],
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "pointwise": lambda x: [x.relu(), x * 2, x + x.clone(), x.clone().mul_(3), -x],
    "cat": lambda x: torch.cat([x, x * 2], 1),
    "pad": lambda x: F.pad(x, (1, 1, 1, 1)),
    "dropout": lambda x: F.dropout(x, 0.0),
    "like": lambda x: [torch.zeros_like(x), x.clone(), x.to(torch.float64), x.roll(1, -1)],
    "pixel_shuffle": lambda x: F.pixel_unshuffle(x, 2),
    "softmax": lambda x: x.softmax(1),
}
VOLUMES: dict[str, Function] = {
    "conv": lambda x: F.conv3d(x, weights(x, 4, 3, 2, 2, 2)),
    "max_pool": lambda x: F.max_pool3d(x, 2),
    "avg_pool": lambda x: F.avg_pool3d(x, 2),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "pointwise": lambda x: [x.relu(), x * 2, -x],
    "cat": lambda x: torch.cat([x, x * 2], 1),
}


def forward_and_backward(function: Function) -> Function:
    def run(x: torch.Tensor) -> list[torch.Tensor | None]:
        x = x.detach().requires_grad_()
        results = tree_leaves(function(x))
        sum((result * result).sum() for result in results if result.requires_grad).backward()
        return [*results, x.grad]

    return run


@pytest.mark.parametrize("name", IMAGES)
def test_channels_last_is_kept_where_the_cpu_keeps_it(name: str) -> None:
    x = torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    assert_same_kind(forward_and_backward(IMAGES[name]), x)


@pytest.mark.parametrize("name", VOLUMES)
def test_channels_last_3d_is_kept_where_the_cpu_keeps_it(name: str) -> None:
    x = torch.randn(2, 3, 4, 4, 4).contiguous(memory_format=torch.channels_last_3d)
    assert_same_kind(forward_and_backward(VOLUMES[name]), x)


def test_numbers_beyond_what_a_signed_integer_holds_reach_the_server() -> None:
    def run(like: torch.Tensor) -> list[torch.Tensor]:
        most = 2**64 - 1
        x = torch.full((2,), most, dtype=torch.uint64, device=like.device)
        y = torch.zeros(3, dtype=torch.uint64, device=like.device).fill_(2**63 + 1)
        return [x, y, x == most]

    assert_matches_cpu(run, torch.zeros(1))
