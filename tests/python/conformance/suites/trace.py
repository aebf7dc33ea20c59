"""torch.jit.trace of every module: a trace made with one input must work for another."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from both import SEED, Run, compare_where_cpu_works, gradients
from cases import Case, Scope
from comparing import tensors_of
from torch.testing._internal.common_modules import ModuleInfo, ModuleInput
from torch.testing._internal.common_utils import set_rng_seed
from torch.utils._pytree import tree_map

from suites.module_samples import MODES, inputs_of, modules, sample_on


def cases(scope: Scope) -> Iterator[Case]:
    for info in modules(scope):
        for mode in MODES:
            for graph in ("", " no_grad"):
                check = partial(_check, info, mode == "train", not graph, scope)
                yield Case(info.name, f"trace {mode}{graph}", "float32", check)


def _check(
    info: ModuleInfo, training: bool, grad: bool, scope: Scope, device: str
) -> Iterator[str]:
    runs = [
        partial(_run, info, module_input, training, grad)
        for module_input in inputs_of(info, training, scope)
    ]
    yield from compare_where_cpu_works(runs, device)


def _run(
    info: ModuleInfo, module_input: ModuleInput, training: bool, grad: bool, device: str
) -> Run:
    sample = sample_on(info, module_input, training, device)
    with torch.set_grad_enabled(grad):
        traced = torch.jit.trace(
            sample.module,
            example_inputs=sample.args if not sample.kwargs else None,
            example_kwarg_inputs=_by_name(info, sample.args, sample.kwargs),
            check_trace=False,
        )
        args, kwargs = tree_map(_other, (sample.args, sample.kwargs))
        set_rng_seed(SEED)
        outputs = traced(*args, **kwargs)
    found = {"outputs": outputs, "buffers": list(sample.module.buffers())}
    if grad:
        found["gradients"] = gradients(tensors_of(outputs), list(sample.module.parameters()))
    return Run(found, sample.mover)


def _by_name(info: ModuleInfo, args: tuple, kwargs: dict) -> dict | None:
    """Tracing takes positional or named inputs, not both."""
    if not kwargs:
        return None
    if args:
        raise NotImplementedError("a module with positional and named inputs is not traced")
    return kwargs


def _other(leaf: object) -> object:
    """Another input of the same shape; indices and masks stay."""
    if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
        return leaf * 0.5
    return leaf
