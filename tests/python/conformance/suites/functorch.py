"""torch.func over every OpInfo: vjp, jvp, and vmap of both, as in PyTorch's functorch tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from both import SEED, Run, compare_where_cpu_works
from cases import Case, Scope
from moving import Mover
from samples import HOST_ARGUMENTS, defined_values, samples_of
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import set_rng_seed
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from suites.ours import is_ours

Tensors = tuple[torch.Tensor, ...]
DTYPE = torch.float32
BATCH = 2


def cases(scope: Scope) -> Iterator[Case]:
    for op in op_db:
        if not op.supports_autograd or DTYPE not in op.supported_dtypes("cpu"):
            continue
        if not (scope.full or is_ours(op)):
            continue
        for variant, transform in TRANSFORMS.items():
            check = partial(_check, op, transform, scope)
            yield Case(op.full_name, variant, "float32", check)


def _check(op: OpInfo, transform: Any, scope: Scope, device: str) -> Iterator[str]:
    limit = scope.samples or (None if scope.full else 1)
    samples = samples_of(op, DTYPE, True, limit)
    yield from compare_where_cpu_works(
        [partial(_run, op, transform, sample) for sample in samples], device
    )


def _run(op: OpInfo, transform: Any, sample: SampleInput, device: str) -> Run:
    mover = Mover(device, host_arguments=op.name in HOST_ARGUMENTS)
    value, args, kwargs = mover.move_sample(sample)
    function, primals = _as_function_of_tensors(op, sample, (value, args, kwargs))
    set_rng_seed(SEED)
    with defined_values(sample):
        return Run(transform(function, primals), mover)


def _as_function_of_tensors(
    op: OpInfo, sample: SampleInput, arguments: Any
) -> tuple[Callable[..., Tensors], Tensors]:
    """The operator as a function of its differentiable arguments to its differentiable results."""
    leaves, structure = tree_flatten(arguments)
    places = [
        place
        for place, leaf in enumerate(leaves)
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    ]
    primals = tuple(leaves[place].detach() for place in places)

    def function(*tensors: torch.Tensor) -> Tensors:
        filled = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        value, args, kwargs = tree_unflatten(filled, structure)
        results = sample.output_process_fn_grad(op(value, *args, **kwargs))
        return tuple(
            leaf
            for leaf in tree_leaves(results)
            if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        )

    return function, primals


def _like(tensors: Tensors) -> Tensors:
    """Random tensors of the same shapes, the same on every device."""
    generator = torch.Generator().manual_seed(SEED)
    return tuple(
        torch.randn(tensor.shape, generator=generator).to(tensor.device) for tensor in tensors
    )


def _vjp(function: Callable[..., Tensors], primals: Tensors) -> Any:
    outputs, pull_back = torch.func.vjp(function, *primals)
    return outputs, pull_back(_like(outputs))


def _jvp(function: Callable[..., Tensors], primals: Tensors) -> Any:
    return torch.func.jvp(function, primals, _like(primals))


def _batched(tensors: Tensors) -> Tensors:
    return tuple(torch.stack([tensor] * BATCH) for tensor in tensors)


def _vmap(transform: Callable[..., Any], function: Callable[..., Tensors], primals: Tensors) -> Any:
    return torch.func.vmap(lambda *p: transform(function, p), randomness="different")(
        *_batched(primals)
    )


TRANSFORMS = {
    "vjp": _vjp,
    "jvp": _jvp,
    "vmap of vjp": partial(_vmap, _vjp),
    "vmap of jvp": partial(_vmap, _jvp),
}
