"""Types of devices and dtypes in arguments."""

from __future__ import annotations

from typing import Any

import torch

from .._target import index_of

__all__ = ["index_of", "is_device_like"]


def is_device_like(value: Any) -> bool:
    """Whether torch would take the value as a device."""
    return isinstance(value, (str, torch.device, int)) and not isinstance(value, bool)
