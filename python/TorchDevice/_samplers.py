"""`WeightedRandomSampler` with a generator of the CPU, under the policy `full`.

It draws within torch.utils.data, whose calls are not those of the program: so its weights are where
its generator is.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils.data import WeightedRandomSampler

from torch_remote_patches import Patches

from . import _C


def _with_weights_of_generator(init: Any) -> Any:
    @functools.wraps(init)
    def initialize(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        is_of_cpu = isinstance(self.generator, torch.Generator) and self.generator.device == _CPU
        if is_of_cpu and _C.decide("cpu")[0] is not None:
            self.weights = self.weights.cpu()  # called from TorchDevice: the CPU itself

    return initialize


_CPU = torch.device("cpu")


def install(changes: Patches) -> None:
    changes.wrap(WeightedRandomSampler, "__init__", _with_weights_of_generator)
