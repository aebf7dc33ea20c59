"""Device management as `torch.cuda` has it. These are the functions of the device module.

`torch.remote` has more of them.
"""

from __future__ import annotations

from typing import Any

from .. import _tensor_types
from .._device import (
    current_device,
    device_count,
    get_device_name,
    get_device_properties,
    get_rng_state,
    is_available,
    manual_seed,
    set_device,
    set_rng_state,
    synchronize,
)

__all__ = [
    "current_device",
    "device_count",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "is_available",
    "manual_seed",
    "set_device",
    "set_rng_state",
    "synchronize",
]
__all__ += _tensor_types.NAMES


def __getattr__(attribute: str) -> Any:
    if attribute in _tensor_types.NAMES:
        return _tensor_types.tensor_type(attribute)
    raise AttributeError(f"module {__name__!r} has no attribute {attribute!r}")
