"""Every OpInfo: forward, backward, with out= and in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from both import SEED, Run, compare, gradients
from cases import Case, NotOnThisDevice, Scope
from comparing import tensors_of
from moving import Mover
from outs import out_arguments
from samples import HOST_ARGUMENTS, defined_values, derived, samples_of
from torch.testing._internal.common_device_type import ANY_DTYPE_ORDER
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import set_rng_seed
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

# Their values are uninitialised.
UNINITIALISED = frozenset(
    ["empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"]
)

# Some samples of these factories name no device and would make a CPU tensor on both sides.
FACTORIES = frozenset(["arange", "linspace", "logspace"])

# OpInfos of CUDA source, which claim dtypes for the CPU and fail there.
CUDA_SOURCE = "jiterator_"

# How many samples are run with out= and in place, without --full.
SOME = 3


def cases(scope: Scope) -> Iterator[Case]:
    """In op_db's order. An OpInfo without a dtype for the CPU gets one case, which is skipped."""
    for op in op_db:
        dtypes = _all_dtypes(op, scope.kind) if scope.full else any_one(op, scope.kind)
        if scope.kind == "cpu" and op.name.startswith(CUDA_SOURCE):
            dtypes = []
        if not dtypes:
            yield Case(op.full_name, "forward", "none", _absent)
        for dtype in dtypes:
            for variant, check in _variants(op, dtype, scope.kind):
                name = str(dtype).removeprefix("torch.")
                yield Case(op.full_name, variant, name, partial(check, op, dtype, scope))


def _variants(
    op: OpInfo, dtype: torch.dtype, kind: str
) -> Iterator[tuple[str, Callable[..., Iterator[str]]]]:
    yield "forward", _check_forward
    if _has_backward(op, dtype, kind):
        yield "backward", _check_backward
    if op.supports_out:
        yield "out", _check_out
    if op.get_inplace() is not None:
        yield "inplace", _check_inplace


def any_one(op: OpInfo, kind: str) -> list[torch.dtype]:
    """What OpDTypes.any_one picks, if any."""
    supported = set(op.supported_dtypes(kind))
    both = supported & set(op.supported_backward_dtypes(kind))
    candidates = both or supported
    return [dtype for dtype in ANY_DTYPE_ORDER if dtype in candidates][:1]


def _all_dtypes(op: OpInfo, kind: str) -> list[torch.dtype]:
    return sorted(op.supported_dtypes(kind), key=str)


def _has_backward(op: OpInfo, dtype: torch.dtype, kind: str) -> bool:
    """Whether PyTorch supports gradients; if not, there is no backward case."""
    return op.supports_autograd and dtype in op.supported_backward_dtypes(kind)


def _absent(device: str) -> Iterator[str]:
    raise NotOnThisDevice("an OpInfo for CUDA only: no dtype on a CPU")
    yield


def _check_forward(op: OpInfo, dtype: torch.dtype, scope: Scope, device: str) -> Iterator[str]:
    samples = samples_of(op, dtype, False, scope.samples)
    for sample in [*samples, *(derived(op, samples, scope.full) if scope.derived else ())]:
        with defined_values(sample):
            run = partial(run_sample, op, op, sample)
            yield compare(run, device, values=op.name not in UNINITIALISED)


def _check_backward(op: OpInfo, dtype: torch.dtype, scope: Scope, device: str) -> Iterator[str]:
    samples = samples_of(op, dtype, True, scope.samples)
    for sample in [*samples, *(derived(op, samples, scope.full) if scope.derived else ())]:
        with defined_values(sample):
            yield compare(partial(sample_gradients, op, op, sample), device)


def _check_out(op: OpInfo, dtype: torch.dtype, scope: Scope, device: str) -> Iterator[str]:
    for sample in samples_of(op, dtype, False, scope.samples or (None if scope.full else SOME)):
        for out in out_arguments(
            op.name, lambda sample=sample: run_sample(op, op, sample, "cpu").results
        ):
            with defined_values(sample):
                run = partial(run_sample, op, op, sample, out=out)
                yield compare(run, device, values=op.name not in UNINITIALISED)


def _check_inplace(op: OpInfo, dtype: torch.dtype, scope: Scope, device: str) -> Iterator[str]:
    inplace = op.get_inplace()
    limit = scope.samples or (None if scope.full else SOME)
    for sample in samples_of(op, dtype, False, limit):
        yield compare(partial(run_sample, op, inplace, sample), device)
    if not (_has_backward(op, dtype, scope.kind) and op.supports_inplace_autograd):
        return

    def on_a_copy(value: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return inplace(value.clone(), *args, **kwargs)

    for sample in samples_of(op, dtype, True, limit):
        yield compare(partial(sample_gradients, op, on_a_copy, sample), device)


def run_sample(
    op: OpInfo, function: Callable[..., Any], sample: SampleInput, device: str, **more: Any
) -> Run:
    mover = Mover(device, host_arguments=op.name in HOST_ARGUMENTS)
    value, args, kwargs = mover.move_sample(sample)
    kwargs |= mover.move(more)
    if op.name in FACTORIES:
        kwargs.setdefault("device", device)
    set_rng_seed(SEED)
    return Run(function(value, *args, **kwargs), mover)


def sample_gradients(
    op: OpInfo, function: Callable[..., Any], sample: SampleInput, device: str
) -> Run:
    run = run_sample(op, function, sample, device)
    outputs = tensors_of(sample.output_process_fn_grad(run.results))
    run.between = tensors_of(run.results)
    run.results = gradients(outputs, run.mover.differentiable_inputs())
    return run
