"""`torch.accelerator`: refuses a device index that does not exist, as CUDA does.

PyTorch's C++ cannot: autograd sets the index of every device there could be.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from ._backend import device_index, existing_index
from ._patches import patch


def _checking(set_index: Any) -> Any:
    @functools.wraps(set_index)
    def checked(device: Any, /) -> None:
        if device_index(device) >= 0:  # PyTorch ignores negative ones
            existing_index(device)
        set_index(device)

    return checked


def install() -> None:
    for function in ("set_device_index", "set_device_idx"):
        patch(torch.accelerator, function, _checking(getattr(torch.accelerator, function)))
