"""Every ModuleInfo in training and evaluation: outputs, gradients and buffers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from both import SEED, Run, compare, gradients
from cases import Case, Scope
from comparing import tensors_of
from moving import Mover
from torch.testing._internal.common_modules import ModuleInfo, ModuleInput, module_db
from torch.testing._internal.common_utils import set_rng_seed

LOW_PRECISION = (torch.bfloat16, torch.float16)


def cases(scope: Scope) -> Iterator[Case]:
    for info in module_db:
        for dtype in _dtypes(info, scope):
            for variant in ("train", "eval"):
                check = partial(_check, info, dtype, variant == "train", scope)
                yield Case(info.name, variant, str(dtype).removeprefix("torch."), check)


def _dtypes(info: ModuleInfo, scope: Scope) -> list[torch.dtype]:
    if scope.full:
        return sorted({*info.dtypes, *LOW_PRECISION}, key=str)
    return [torch.float32 if torch.float32 in info.dtypes else min(info.dtypes, key=str)]


def _check(
    info: ModuleInfo, dtype: torch.dtype, training: bool, scope: Scope, device: str
) -> Iterator[str]:
    set_rng_seed(SEED)
    inputs = info.module_inputs_func(
        info, device="cpu", dtype=dtype, requires_grad=True, training=training
    )
    for module_input in list(inputs)[: scope.samples]:
        yield compare(partial(_run, info, dtype, training, module_input), device)


def _run(
    info: ModuleInfo, dtype: torch.dtype, training: bool, module_input: ModuleInput, device: str
) -> Run:
    made = module_input.constructor_input
    set_rng_seed(SEED)
    module = info.module_cls(*made.args, **made.kwargs).to(dtype).to(device).train(training)
    mover = Mover(device)
    given: Any = module_input.forward_input
    args, kwargs = mover.move(given.args), mover.move(given.kwargs)
    set_rng_seed(SEED)
    outputs = module(*args, **kwargs)
    wanted = [*module.parameters(), *mover.differentiable_inputs()]
    results = {
        "outputs": outputs,
        "gradients": gradients(tensors_of(outputs), wanted),
        "parameters": list(module.parameters()),
        "buffers": list(module.buffers()),
    }
    return Run(results, mover)
