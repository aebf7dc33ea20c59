"""An OpInfo's samples, and samples derived from them: non-contiguous, and without elements."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from both import SEED
from torch.testing._internal.common_utils import set_rng_seed
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_leaves

# PyTorch wants these indices on the CPU, for CUDA too.
HOST_ARGUMENTS = frozenset(["tensor_split"])

# How many samples of an OpInfo others are derived from, without --full.
FEW = 2


# Without elements they, or their backward, crash on a CPU or leave their result uninitialised.
NOT_EMPTIED = frozenset(
    [
        "native_batch_norm",
        "_native_batch_norm_legit",
        "nn.functional.multi_margin_loss",
        "nn.functional.multilabel_margin_loss",
        "nn.functional.pdist",
        "_segment_reduce",
    ]
)


def samples_of(
    op: OpInfo, dtype: torch.dtype, requires_grad: bool, limit: int | None
) -> list[SampleInput]:
    set_rng_seed(SEED)
    samples = op.sample_inputs("cpu", dtype, requires_grad=requires_grad)
    return list(itertools.islice(samples, limit))


# They grow a non-contiguous sample, and the new part is uninitialised.
NOT_DERIVED = frozenset(["resize_", "resize_as_"])


def derived(op: OpInfo, samples: list[SampleInput], full: bool) -> Iterator[SampleInput]:
    """Non-contiguous samples, and samples without elements unless the OpInfo gave one."""
    if op.name in NOT_DERIVED:
        return
    some = samples if full else samples[:FEW]
    dense = [sample for sample in some if _is_dense(sample)]
    for sample in dense:
        yield sample.noncontiguous()
    if op.name in NOT_EMPTIED:
        return
    if any(tensor.numel() == 0 for sample in samples for tensor in _tensors(sample)):
        return
    for sample in dense:
        yield from _emptied(sample)


def _emptied(sample: SampleInput) -> Iterator[SampleInput]:
    """Empties the dimensions as long as the first tensor's first size, then as its last."""
    first = next(iter(_tensors(sample)), None)
    if first is None or first.dim() == 0:
        return
    for size in dict.fromkeys([first.shape[0], first.shape[-1]]):
        yield sample.transform(lambda leaf, size=size: _without(leaf, size))


def _without(leaf: Any, size: int) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    shape = [0 if length == size else length for length in leaf.shape]
    if 0 not in shape:
        return leaf
    return torch.empty(shape, dtype=leaf.dtype, requires_grad=leaf.requires_grad)


def _tensors(sample: SampleInput) -> list[torch.Tensor]:
    leaves = tree_leaves((sample.input, sample.args, sample.kwargs))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _is_dense(sample: SampleInput) -> bool:
    return all(tensor.layout == torch.strided for tensor in _tensors(sample))


class defined_values:
    """LAPACK's gelsy reads pivots that PyTorch does not initialise, unless it fills new memory."""

    def __init__(self, sample: SampleInput) -> None:
        self._fill = sample.kwargs.get("driver") == "gelsy"

    def __enter__(self) -> None:
        if self._fill:
            torch.use_deterministic_algorithms(True)

    def __exit__(self, *error: object) -> None:
        if self._fill:
            torch.use_deterministic_algorithms(False)
