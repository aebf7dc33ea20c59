"""Modules of module_db with inputs in several batch sizes, for the tracing suites."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from both import SEED
from cases import Scope
from moving import Mover
from torch.testing._internal.common_modules import ModuleInfo, ModuleInput, module_db
from torch.testing._internal.common_utils import set_rng_seed
from torch.utils._pytree import tree_map

from suites.more_modules import MORE_MODULES
from suites.ours import is_our_module

DTYPE = torch.float32
MODES = ("train", "eval")
# For a module: each sample is compiled again, which takes a second.
MOST_SAMPLES = 2


def modules(scope: Scope) -> Iterator[ModuleInfo]:
    for info in [*module_db, *MORE_MODULES]:
        if DTYPE in info.dtypes and (scope.full or is_our_module(info.name)):
            yield info


def inputs_of(
    info: ModuleInfo, training: bool, scope: Scope, most: int | None = None
) -> list[ModuleInput]:
    """One sample, or with --full at most `most`."""
    set_rng_seed(SEED)
    made = info.module_inputs_func(
        info, device="cpu", dtype=DTYPE, requires_grad=False, training=training
    )
    return list(made)[: scope.samples or (most if scope.full else 1)]


@dataclass
class Sample:
    """A module on a device, with inputs from which other batch sizes are made."""

    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    mover: Mover

    def inputs(self, times: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The inputs with `times` the batch: repeated, and scaled so that no part repeats."""

        def grow(leaf: Any) -> Any:
            if times == 1 or not isinstance(leaf, torch.Tensor) or leaf.dim() == 0:
                return leaf
            if not leaf.is_floating_point():
                return torch.cat([leaf] * times)
            return torch.cat([leaf / (part + 1) for part in range(times)])

        return tree_map(grow, self.args), tree_map(grow, self.kwargs)


def sample_on(info: ModuleInfo, module_input: ModuleInput, training: bool, device: str) -> Sample:
    made = module_input.constructor_input
    set_rng_seed(SEED)
    module = info.module_cls(*made.args, **made.kwargs).to(DTYPE).to(device).train(training)
    mover = Mover(device)
    given: Any = module_input.forward_input
    return Sample(module, mover.move(given.args), mover.move(given.kwargs), mover)
