"""`torch.remote.amp`, with the names and arguments of `torch.cuda.amp`."""

from __future__ import annotations

from typing import Any

import torch

from ._backend import name

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]


class autocast(torch.amp.autocast):  # type: ignore[misc]
    """`torch.autocast` for this device."""

    def __init__(
        self,
        enabled: bool = True,
        dtype: torch.dtype = torch.float16,
        cache_enabled: bool = True,
    ) -> None:
        super().__init__(name(), dtype, enabled, cache_enabled)


class GradScaler(torch.amp.GradScaler):  # type: ignore[misc]
    """`torch.amp.GradScaler` for this device."""

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        super().__init__(
            name(), init_scale, growth_factor, backoff_factor, growth_interval, enabled
        )


def custom_fwd(fwd: Any = None, *, cast_inputs: torch.dtype | None = None) -> Any:
    """`torch.amp.custom_fwd` for this device."""
    return torch.amp.custom_fwd(fwd, device_type=name(), cast_inputs=cast_inputs)


def custom_bwd(bwd: Any = None) -> Any:
    """`torch.amp.custom_bwd` for this device."""
    return torch.amp.custom_bwd(bwd, device_type=name())
