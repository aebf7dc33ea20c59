"""Printing a tensor downloads once, and only the elements that are printed.

PyTorch formats by a dozen operators and reads elements one at a time. `_tensor_str` is the one
function of torch/_tensor_str.py that reads elements; for our tensors it gets them on the CPU.
Everything around the elements (device, dtype, grad_fn) is PyTorch's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import _tensor_str

from ._backend import is_ours
from ._patches import patch


class _Summary:
    """Stands in for a large CPU tensor of which only the printed edges were downloaded.

    `shape` is the tensor's; `edges` has the first and last `edgeitems` of each long dimension.
    It has the methods that torch/_tensor_str.py calls on such a tensor.
    """

    def __init__(self, edges: torch.Tensor, shape: tuple[int, ...]) -> None:
        self.edges = edges
        self.shape = shape
        self.dtype = edges.dtype

    def numel(self) -> int:
        return math.prod(self.shape)

    def dim(self) -> int:
        return len(self.shape)

    def size(self, dim: int) -> int:
        return self.shape[dim]

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Any:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):  # [:edgeitems] and [-edgeitems:] are the same for the edges
            return self.edges[index]
        here = len(self.edges)
        row = self.edges[index if index < here // 2 else index - len(self) + here]
        return _stand_in(row, self.shape[1:])

    # What the printer asks of a tensor.
    def has_names(self) -> bool:
        return False

    def is_neg(self) -> bool:
        return bool(self.edges.is_neg())

    def _is_zerotensor(self) -> bool:
        return False

    def resolve_neg(self) -> _Summary:
        return _Summary(self.edges.resolve_neg(), self.shape)

    def resolve_conj(self) -> _Summary:
        return _Summary(self.edges.resolve_conj(), self.shape)

    def half(self) -> _Summary:
        return _Summary(self.edges.half(), self.shape)

    def float(self) -> _Summary:
        return _Summary(self.edges.float(), self.shape)

    def cfloat(self) -> _Summary:
        return _Summary(self.edges.cfloat(), self.shape)

    def view(self, dtype: torch.dtype) -> _Summary:
        return _Summary(self.edges.view(dtype), self.shape)

    def new_empty(self, shape: list[int]) -> torch.Tensor:
        return self.edges.new_empty(shape)

    @property
    def real(self) -> _Summary:
        return _Summary(self.edges.real, self.shape)

    @property
    def imag(self) -> _Summary:
        return _Summary(self.edges.imag, self.shape)


def _stand_in(edges: torch.Tensor, shape: tuple[int, ...]) -> Any:
    return edges if tuple(edges.shape) == shape else _Summary(edges, shape)


def _edges(tensor: torch.Tensor, edgeitems: int) -> torch.Tensor:
    """The first and last `edgeitems` of every long dimension, on the CPU.

    Both ends of a dimension are one view: two blocks, `size - edgeitems` apart. So the server
    computes nothing, and one read brings exactly these elements.
    """
    sizes: list[int] = []
    strides: list[int] = []
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if size > 2 * edgeitems:
            sizes += [2, edgeitems]
            strides += [(size - edgeitems) * stride, stride]
        else:
            sizes.append(size)
            strides.append(stride)
    shape = [min(size, 2 * edgeitems) for size in tensor.shape]
    return tensor.as_strided(sizes, strides).cpu().reshape(shape)


def _printed_part(tensor: torch.Tensor) -> Any:
    """What the printer needs of the tensor, on the CPU."""
    options = _tensor_str.PRINT_OPTS
    if tensor.numel() <= options.threshold or tensor.layout != torch.strided:
        return tensor.cpu()
    shape = tuple(tensor.shape)
    if not options.edgeitems:  # prints "..." and no element
        return _stand_in(torch.empty([0] * len(shape), dtype=tensor.dtype), shape)
    if tensor._is_zerotensor():
        tensor = tensor.clone()
    if hasattr(tensor, "has_names") and tensor.has_names():  # torch 2.11; gone in 2.13
        tensor = tensor.rename(None)
    return _stand_in(_edges(tensor, options.edgeitems), shape)


def install() -> None:
    """Makes `print(tensor)` download once."""
    format_elements: Callable[[Any, int], str] = _tensor_str._tensor_str

    def _format(self: torch.Tensor, indent: int) -> str:
        return format_elements(_printed_part(self) if is_ours(self) else self, indent)

    patch(_tensor_str, "_tensor_str", _format)
