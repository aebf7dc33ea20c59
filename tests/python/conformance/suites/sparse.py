"""Every OpInfo that takes sparse tensors, for each layout: forward and backward."""

from __future__ import annotations

import itertools
import unittest
from collections.abc import Iterator
from functools import partial

import torch
from both import SEED, compare, compare_where_cpu_works
from cases import COMPARED, Case, NotOnThisDevice, Scope
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import set_rng_seed
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

from suites.ops import any_one, run_sample, sample_gradients

LAYOUTS = (
    torch.sparse_coo,
    torch.sparse_csr,
    torch.sparse_csc,
    torch.sparse_bsr,
    torch.sparse_bsc,
)

# How many samples of an entry are run, without --full.
SOME = 12


def cases(scope: Scope) -> Iterator[Case]:
    for op, layout in itertools.product(op_db, LAYOUTS):
        if not op.supports_sparse_layout(layout):
            continue
        for dtype in any_one(op, scope.kind):
            name = str(layout).removeprefix("torch.sparse_")
            dtype_name = str(dtype).removeprefix("torch.")
            forward = partial(_check_forward, op, layout, dtype, scope)
            yield Case(op.full_name, name, dtype_name, forward)
            if op.supports_autograd:
                backward = partial(_check_backward, op, layout, dtype, scope)
                yield Case(op.full_name, f"{name}_backward", dtype_name, backward)


def _samples(
    op: OpInfo, layout: torch.layout, dtype: torch.dtype, requires_grad: bool, scope: Scope
) -> list[SampleInput]:
    limit = scope.samples or (None if scope.full else SOME)
    set_rng_seed(SEED)
    try:
        samples = op.sample_inputs_sparse(layout, "cpu", dtype, requires_grad=requires_grad)
        return list(itertools.islice(samples, limit))
    except (NotImplementedError, unittest.SkipTest):  # it has dense samples only
        dense = op.sample_inputs("cpu", dtype)
        converted = (_converted(sample, layout, requires_grad) for sample in dense)
        return list(itertools.islice(filter(None, converted), limit))


def _converted(
    sample: SampleInput, layout: torch.layout, requires_grad: bool
) -> SampleInput | None:
    """The sample with its input in this layout, as PyTorch's test_sparse.py makes it."""
    dense = sample.input
    if not isinstance(dense, torch.Tensor) or (layout != torch.sparse_coo and dense.dim() < 2):
        return None
    blocks = {"blocksize": (1, 1)} if layout in (torch.sparse_bsr, torch.sparse_bsc) else {}
    sparse = dense.detach().to_sparse(layout=layout, **blocks)
    is_float = dense.is_floating_point() or dense.is_complex()
    return SampleInput(
        sparse.requires_grad_(requires_grad and is_float),
        args=sample.args,
        kwargs=sample.kwargs,
        output_process_fn_grad=sample.output_process_fn_grad,
    )


def _check_forward(
    op: OpInfo, layout: torch.layout, dtype: torch.dtype, scope: Scope, device: str
) -> Iterator[str]:
    for sample in _samples(op, layout, dtype, False, scope):
        yield compare(partial(run_sample, op, op, sample), device)


def _check_backward(
    op: OpInfo, layout: torch.layout, dtype: torch.dtype, scope: Scope, device: str
) -> Iterator[str]:
    samples = _samples(op, layout, dtype, True, scope)
    runs = [partial(sample_gradients, op, op, sample) for sample in samples]
    words = list(compare_where_cpu_works(runs, device))
    if COMPARED not in words:
        raise NotOnThisDevice("no sample of PyTorch's has a gradient")
    yield from words
