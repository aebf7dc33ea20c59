"""OpInfo's samples of jagged tensors, made strided nested ones: forward and backward.

PyTorch has no samples of strided nested tensors. What its CPU refuses must be refused alike.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from both import SEED, compare, compare_where_cpu_works
from cases import COMPARED, Case, NotOnThisDevice, Scope
from torch.testing._internal.common_utils import set_rng_seed
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.testing._internal.opinfo.definitions.nested import njt_op_db
from torch.utils._pytree import tree_map

from suites.ops import CUDA_SOURCE, run_sample, sample_gradients

# How many samples of an entry are run, without --full.
SOME = 8


# PyTorch makes these samples of random floats.
DTYPE = torch.float32


def cases(scope: Scope) -> Iterator[Case]:
    for op in njt_op_db:
        has_samples = op.supports_njt and DTYPE in op.supported_dtypes(scope.kind)
        if not has_samples or op.name.startswith(CUDA_SOURCE):
            continue
        yield Case(op.full_name, "forward", "float32", partial(_check_forward, op, scope))
        if op.supports_autograd:
            yield Case(op.full_name, "backward", "float32", partial(_check_backward, op, scope))


def _samples(op: OpInfo, requires_grad: bool, scope: Scope) -> list[SampleInput]:
    set_rng_seed(SEED)
    samples = op.sample_inputs("cpu", DTYPE, requires_grad=requires_grad)
    limit = scope.samples or (None if scope.full else SOME)
    return [_strided(sample) for sample in itertools.islice(samples, limit)]


def _strided(sample: SampleInput) -> SampleInput:
    def convert(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.layout != torch.jagged:
            return value
        parts = [part.detach() for part in value.unbind()]
        return torch.nested.nested_tensor(parts, requires_grad=value.requires_grad)

    return SampleInput(
        tree_map(convert, sample.input),
        args=tree_map(convert, sample.args),
        kwargs=tree_map(convert, sample.kwargs),
    )


def _check_forward(op: OpInfo, scope: Scope, device: str) -> Iterator[str]:
    for sample in _samples(op, False, scope):
        yield compare(partial(run_sample, op, op, sample), device)


def _check_backward(op: OpInfo, scope: Scope, device: str) -> Iterator[str]:
    samples = _samples(op, True, scope)
    runs = [partial(sample_gradients, op, op, sample) for sample in samples]
    words = list(compare_where_cpu_works(runs, device))
    if COMPARED not in words:
        raise NotOnThisDevice("no sample has a gradient on the CPU")
    yield from words
