"""Compares a server's log of calls with the tree of operators that PyTorch runs locally.

The log must be a cut through the tree: every operator of the tree is logged, or is below one that
is, or is ignored, or consists of such operators. So an operator may be sent whole, or as the
operators that PyTorch composes it of, in PyTorch's order. Ignored, because they are never sent:

- views, in place too, and `detach`: schemas that return an alias of an argument,
- operators that make or resize a tensor without values, and operators that only read metadata,
- reads (`_local_scalar_dense`), which are a READ and not a call,
- questions which kernel to use, whose answer is cached; the log omits them too,
- on CUDA, `copy_` unless it is next in the log: between host and device it is an upload or a read,
- copies of no elements (left out by kernel_sides.py),
- composed operators (CompositeImplicitAutograd) that called nothing: `contiguous` of a contiguous.

Autograd may clone what an in-place operator overwrites. The profiler shows that clone below the
operator, and the log before it.

A kernel is an operator of the tree that PyTorch does not compose above autograd. There may not be
more calls than kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch

Tree = list[Any]  # [name, [children]]

CLONE = "aten::clone"
COPY = "aten::copy_"
# On a CPU PyTorch does this without the dispatcher: a new tensor, filled.
SHORT_CUTS = {"aten::scalar_tensor": "aten::fill_.Scalar"}
# Composed, but on a CPU, without gradients, it contains a kernel.
WITH_OWN_KERNEL = {"aten::max_pool1d"}
QUESTIONS = {"_fused_sdp_choice", "_use_cudnn_ctc_loss", "_use_miopen_ctc_loss"}
STAYS = QUESTIONS | {
    "_efficientzerotensor",
    "_local_scalar_dense",
    "_reshape_alias",
    "_resize_output_",
    "_unsafe_view",
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "is_same_size",
    "new_empty",
    "new_empty_strided",
    "record_stream",
    "resize_",
    "resize_as_",
    "set_",
    "unsafe_chunk",
    "unsafe_split",
    "unsafe_split_with_sizes",
}


@cache
def takes_part(name: str) -> bool:
    """Whether an operator that calls no other computes something."""
    if not name.startswith("aten::"):
        return False
    base, _, overload = name.removeprefix("aten::").partition(".")
    operation = getattr(getattr(torch.ops.aten, base), overload or "default")
    returns = operation._schema.returns
    aliases = [result.alias_info for result in returns if result.alias_info is not None]
    is_view = any(not alias.is_write for alias in aliases)
    if is_view or torch.Tag.inplace_view in operation.tags:
        return False
    return base not in STAYS


@cache
def is_composed(name: str, backend: str) -> bool:
    """Whether PyTorch composes it of other operators, above autograd."""
    if not name.startswith("aten::"):
        return True

    def has(key: str) -> bool:
        return torch._C._dispatch_has_kernel_for_dispatch_key(name, key)

    return has("CompositeImplicitAutograd") and not has(backend)


def is_question(name: str) -> bool:
    return name.removeprefix("aten::").partition(".")[0] in QUESTIONS


def is_kept_by_autograd(name: str, children: list[Tree]) -> bool:
    is_in_place = name.partition(".")[0].endswith("_")
    return is_in_place and bool(children) and children[0][0] == CLONE


def kernels(trees: list[Tree], backend: str) -> Iterator[str]:
    """What the device is asked to run, in order."""
    for name, children in trees:
        if is_composed(name, backend):
            parts = list(kernels(children, backend))
            yield from parts or WITH_OWN_KERNEL & {name}
        elif takes_part(name):
            if is_kept_by_autograd(name, children):
                yield CLONE
            yield name


class _Cut:
    def __init__(self, calls: list[str], backend: str) -> None:
        self._calls = calls
        self._backend = backend
        self._next = 0

    def follow(self, trees: list[Tree]) -> str | None:
        """Walks the trees and the calls together. Returns where they differ."""
        for name, children in trees:
            if is_kept_by_autograd(name, children) and self._is_next(CLONE, name):
                self._next += 2
            elif self._is_next(name) or (not children and self._is_next(SHORT_CUTS.get(name, ""))):
                self._next += 1
            elif children:
                if found := self.follow(children):
                    return f"{found}, in {name}"
            elif self._backend == "CUDA" and name == COPY:
                continue
            elif takes_part(name) and not is_composed(name, self._backend):
                return f"{self._here()}, locally {name}"
        return None

    def rest(self) -> str | None:
        return None if self._next == len(self._calls) else f"{self._here()}, locally nothing"

    def _is_next(self, *names: str) -> bool:
        return self._calls[self._next : self._next + len(names)] == list(names)

    def _here(self) -> str:
        got = self._calls[self._next] if self._next < len(self._calls) else "nothing"
        return f"call {self._next} is {got}"


def difference(trees: list[Tree], calls: list[str], backend: str) -> str | None:
    """None if the calls are a cut through the trees; else the difference."""
    cut = _Cut(calls, backend)
    return cut.follow(trees) or cut.rest()
