"""What the accelerator's generator does when a program seeds or saves torch's default generator.

Also `WeightedRandomSampler` with a generator of the CPU, under the policy `full`: it draws within
torch.utils.data, whose calls are not those of the program, so its weights are where its generator
is.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils.data import WeightedRandomSampler

from torch_remote_patches import Patches

from . import _C, _masquerade
from ._log import warn_once

_CPU = torch.device("cpu")


class _Random:
    """The random numbers of the accelerator's current device; `of` is `torch.cuda` or the like."""

    def __init__(self, of: Any, kind: str) -> None:
        self.kind = kind
        self.manual_seed = of.manual_seed
        self.initial_seed = of.initial_seed
        self.get_rng_state = of.get_rng_state
        self.set_rng_state = of.set_rng_state

    def clone_state(self) -> torch.Generator:
        generator = torch.Generator(self.kind)
        generator.set_state(self.get_rng_state())
        return generator

    def set_state_of_cpu(self, state: torch.Tensor) -> None:
        """A state that was taken without TorchDevice, or under the CPU override."""
        try:
            self.set_rng_state(state)
        except (RuntimeError, TypeError) as error:
            if type(error) not in (RuntimeError, TypeError):  # such as a lost session
                raise
            warn_once(
                "torch.set_rng_state",
                "restores the CPU's generator only: the accelerator has another kind of state",
            )


def of_accelerator() -> _Random | None:
    """None in a forked child that may not use the accelerator."""
    target = _masquerade.current_target()
    kind = "cuda" if target is None else target.kind
    module = getattr(torch, kind)
    if module._is_in_bad_fork():
        return None
    return _Random(module if target is None else target, kind)


def _with_weights_of_generator(init: Any) -> Any:
    @functools.wraps(init)
    def initialize(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        is_of_cpu = isinstance(self.generator, torch.Generator) and self.generator.device == _CPU
        if is_of_cpu and _C.decide("cpu")[0] is not None:
            self.weights = self.weights.cpu()  # called from TorchDevice: the CPU itself

    return initialize


def install(changes: Patches) -> None:
    changes.wrap(WeightedRandomSampler, "__init__", _with_weights_of_generator)
