"""torch.export of every module with a dynamic batch size, run with another size."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from both import SEED, Run, compare_where_cpu_works
from cases import Case, Scope
from torch.export import Dim
from torch.testing._internal.common_modules import ModuleInfo, ModuleInput
from torch.testing._internal.common_utils import set_rng_seed
from torch.utils._pytree import tree_map

from suites.module_samples import MOST_SAMPLES, Sample, inputs_of, modules, sample_on

# Batches, as multiples of the sample's: the first for the export, each for a run.
BATCHES = (2, 3)


def cases(scope: Scope) -> Iterator[Case]:
    for info in modules(scope):
        for mode in ("train", "eval"):
            check = partial(_check, info, mode == "train", scope)
            yield Case(info.name, f"export {mode}", "float32", check)


def _check(info: ModuleInfo, training: bool, scope: Scope, device: str) -> Iterator[str]:
    runs = [
        partial(_run, info, module_input, training, times)
        for module_input in inputs_of(info, training, scope, MOST_SAMPLES)
        for times in BATCHES
    ]
    yield from compare_where_cpu_works(runs, device)


def _run(
    info: ModuleInfo, module_input: ModuleInput, training: bool, times: int, device: str
) -> Run:
    sample = sample_on(info, module_input, training, device)
    exported = _exported(sample)
    args, kwargs = sample.inputs(times)
    set_rng_seed(SEED)
    with torch.no_grad():
        return Run(exported.module()(*args, **kwargs), sample.mover)


def _exported(sample: Sample) -> Any:
    args, kwargs = sample.inputs(BATCHES[0])

    def any_batch(leaf: Any) -> Any:
        return {0: Dim.AUTO} if isinstance(leaf, torch.Tensor) and leaf.dim() else None

    shapes = (*tree_map(any_batch, args), *tree_map(any_batch, kwargs).values())
    return torch.export.export(sample.module, args, kwargs, dynamic_shapes=shapes)
