"""Where PyTorch's own Python picks a way by the device's name, the way of the server's device is taken."""

from __future__ import annotations

import functools
from typing import Any

import torch

from . import _backend
from ._device import get_device_properties


def _seen_by_server(device: torch.device | None) -> torch.device | None:
    """The device as PyTorch on a CPU server would name it. A CUDA server's stays as it is: what follows from the name
    `cuda` asks CUDA in this process.
    """
    if device is None or device.type != _backend.name():
        return device
    return torch.device("cpu") if get_device_properties(device).kind == "cpu" else device


def install() -> None:
    """How linear_cross_entropy accumulates in half precision, and in which chunks. To be called once."""
    try:
        from torch.nn.modules.linear_cross_entropy_options import LinearCrossEntropyOptions
    except ImportError:  # before torch 2.13
        return
    adjust = LinearCrossEntropyOptions._adjust

    @functools.wraps(adjust)
    def adjusted(
        self: Any,
        num_batches: int,
        in_features: int,
        num_classes: int,
        dtype: torch.dtype,
        device: torch.device | None = None,
    ) -> Any:
        place = _seen_by_server(device)
        return adjust(self, num_batches, in_features, num_classes, dtype, place)

    LinearCrossEntropyOptions._adjust = adjusted
