"""Equality for the suite: same structure, dtype, shape, strides and bits; all NaNs are equal."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_flatten

_INTEGER_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

PARTS_OF_LAYOUT = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


def nested_metadata(nested: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sizes, strides and offsets of a strided nested tensor."""
    return (
        nested._nested_tensor_size(),
        nested._nested_tensor_strides(),
        nested._nested_tensor_storage_offsets(),
    )


class Mismatch(Exception):
    """The device's result differs from the CPU's. The text says where and how."""


def check_equal(expected: Any, actual: Any, device: str, *, values: bool = True) -> None:
    """Raises Mismatch unless `actual`, on `device`, is `expected`, on the CPU."""
    expected_leaves, expected_tree = _flatten(expected)
    actual_leaves, actual_tree = _flatten(actual)
    if expected_tree != actual_tree:
        raise Mismatch(f"structure: {actual_tree} instead of {expected_tree}")
    for index, (want, got) in enumerate(zip(expected_leaves, actual_leaves, strict=True)):
        _check_leaf(f"output {index}", want, got, device, values)


def check_aliasing(expected: list[torch.Tensor], actual: list[torch.Tensor]) -> None:
    """Raises Mismatch unless the same tensors share storage, each at the same offset."""
    for index, (want, got) in enumerate(zip(_sharing(expected), _sharing(actual), strict=True)):
        if want != got:
            raise Mismatch(
                f"aliasing: tensor {index} of {len(expected)} (inputs, then outputs) shares with "
                f"tensor {got[0]} at offset {got[1]} instead of {want[0]} at {want[1]}"
            )


def tensors_of(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in _flatten(value)[0] if isinstance(leaf, torch.Tensor)]


def _sharing(tensors: list[torch.Tensor]) -> list[tuple[int, int]]:
    """For each, the first tensor with the same storage, and its own offset.

    Of sparse tensors, which have no storage, only their number counts.
    """
    firsts: dict[int, int] = {}
    return [
        (firsts.setdefault(tensor.untyped_storage()._cdata, index), tensor.storage_offset())
        if tensor.layout == torch.strided
        else (index, 0)
        for index, tensor in enumerate(tensors)
    ]


def _flatten(value: Any) -> tuple[list[Any], Any]:
    is_packed = lambda node: isinstance(node, PackedSequence)  # noqa: E731
    leaves, tree = tree_flatten(value, is_leaf=is_packed)
    return tree_flatten([tuple(leaf) if is_packed(leaf) else leaf for leaf in leaves])[0], tree


def _check_leaf(where: str, want: Any, got: Any, device: str, values: bool) -> None:
    if not isinstance(want, torch.Tensor):
        if not _same_plain(want, got, device):
            raise Mismatch(f"{where}: {got!r} instead of {want!r}")
        return
    if not isinstance(got, torch.Tensor):
        raise Mismatch(f"{where}: {type(got).__name__} instead of a tensor")
    if got.device.type != torch.device(device).type:
        raise Mismatch(f"{where}: on {got.device} instead of {device}")
    _check_tensor(where, want, got, values)


def _nested_parts(nested: torch.Tensor) -> list[torch.Tensor]:
    parts = nested.detach().unbind()
    return [*nested_metadata(nested), *parts, torch.tensor([nested.is_contiguous(), len(parts)])]


def _same_plain(want: Any, got: Any, device: str) -> bool:
    if isinstance(want, torch.device):
        return bool(got.type == torch.device(device).type)
    if isinstance(want, float) and math.isnan(want):
        return isinstance(got, float) and math.isnan(got)
    return type(want) is type(got) and bool(want == got)


def _check_tensor(where: str, want: torch.Tensor, got: torch.Tensor, values: bool) -> None:
    if want.is_nested and got.is_nested:
        for index, parts in enumerate(zip(_nested_parts(want), _nested_parts(got), strict=True)):
            _check_tensor(f"{where}, part {index}", *parts, values)
        return
    for name in ("is_nested", "dtype", "layout", "shape"):
        if getattr(want, name) != getattr(got, name):
            raise Mismatch(f"{where}: {name} {getattr(got, name)} instead of {getattr(want, name)}")
    if want.layout == torch.sparse_coo and want.is_coalesced() != got.is_coalesced():
        raise Mismatch(f"{where}: is_coalesced() is {got.is_coalesced()}")
    if want.layout != torch.strided:
        for part in PARTS_OF_LAYOUT[want.layout]:
            _check_tensor(f"{where}.{part}", getattr(want, part)(), getattr(got, part)(), values)
        return
    if values:
        _check_bits(where, want.detach(), got.detach().cpu())
    if want.stride() != got.stride():
        raise Mismatch(f"strides: {where}: {got.stride()} instead of {want.stride()}")
    for name in ("is_conj", "is_neg"):
        if getattr(want, name)() != getattr(got, name)():
            raise Mismatch(f"{where}: {name}() is {getattr(got, name)()}")


def _check_bits(where: str, want: torch.Tensor, got: torch.Tensor) -> None:
    want, got = _plain(want), _plain(got)
    same = _as_integers(want) == _as_integers(got)
    if bool(same.all()):
        return
    if want.is_floating_point():
        same |= want.float().isnan() & got.float().isnan()
    wrong = int((~same).sum())
    if not wrong:
        return
    at = int((~same).flatten().nonzero()[0])
    raise Mismatch(
        f"{where}: {wrong} of {want.numel()} values differ, "
        f"first {got.flatten()[at].item()!r} instead of {want.flatten()[at].item()!r}"
    )


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Contiguous, with conj and neg resolved, complex numbers as pairs."""
    tensor = tensor.resolve_conj().resolve_neg().contiguous()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _as_integers(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_floating_point():
        return tensor
    return tensor.view(_INTEGER_OF_SIZE[tensor.element_size()])
