"""Copies of sample inputs on a device that look the same to an operator.

Strides, storage offsets, storage shared between arguments, conj and neg bits and requires_grad are
kept: each storage is copied once, whole, and every tensor is rebuilt on its copy with as_strided.
`t.to(device)` would keep none of the first three.
"""

from __future__ import annotations

from typing import Any

import torch
from comparing import nested_metadata
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_map


class Mover:
    """Moves one sample and keeps what it has copied: use a new one for every sample."""

    def __init__(self, device: str, host_arguments: bool = False) -> None:
        self.device = torch.device(device)
        self._host_arguments = host_arguments  # only the input moves
        self.moved: list[tuple[torch.Tensor, torch.Tensor]] = []  # (original, copy), in order
        self._bases: dict[int, torch.Tensor] = {}  # by address of the original's storage object

    def move(self, value: Any) -> Any:
        return tree_map(
            self._move_leaf, value, is_leaf=lambda node: isinstance(node, PackedSequence)
        )

    def move_sample(self, sample: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        value = self.move(sample.input)
        if self._host_arguments:
            return value, tuple(sample.args), dict(sample.kwargs)
        return value, self.move(tuple(sample.args)), self.move(sample.kwargs)

    def differentiable_inputs(self) -> list[torch.Tensor]:
        return [copy for _, copy in self.moved if copy.requires_grad]

    def _move_leaf(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return self._move_tensor(leaf)
        # Samples of factory functions contain their device.
        if isinstance(leaf, torch.device) and leaf.type == "cpu":
            return self.device
        if isinstance(leaf, str) and leaf == "cpu":
            return str(self.device)
        if isinstance(leaf, PackedSequence):
            return leaf.to(self.device)
        return leaf

    def _move_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        for original, copy in self.moved:
            if original is tensor:
                return copy
        with torch.no_grad():
            if tensor.layout == torch.strided:
                copy = self._rebuild(tensor)
            else:
                copy = tensor.detach().to(self.device, copy=True)
        # Detached: the copy of a leaf must not be a view made under no_grad.
        copy = copy.detach().requires_grad_(tensor.requires_grad)
        self.moved.append((tensor, copy))
        return copy

    def _rebuild(self, tensor: torch.Tensor) -> torch.Tensor:
        base = self._base(tensor)
        if base.dtype != tensor.dtype:
            base = base.view(tensor.dtype)
        if tensor.is_nested:
            return torch._nested_view_from_buffer(base, *nested_metadata(tensor))
        copy = base.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
        if tensor.is_conj():
            copy = copy.conj()
        if tensor.is_neg():
            copy = torch._neg_view(copy)
        return copy

    def _base(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._bases:
            count = storage.nbytes() // tensor.element_size()
            whole = torch.empty(0, dtype=tensor.dtype).set_(storage, 0, (count,), (1,))
            self._bases[key] = whole.to(self.device, copy=True)
        return self._bases[key]
