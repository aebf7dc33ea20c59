"""`torch.autocast("cuda")` and `GradScaler("cuda")` mean the device in use."""

from __future__ import annotations

import functools
import importlib
import sys
from typing import Any

import torch

from torch_remote_patches import Patches

from ._own import note


def _autocast(init: Any, kind: str) -> Any:
    @functools.wraps(init)
    def redirected(
        self: Any, device_type: str, dtype: torch.dtype | None = None, *args: Any, **kwargs: Any
    ) -> None:
        if device_type == "cuda":
            note("torch.autocast", device_type, sys._getframe(1).f_globals.get("__name__", ""))
            device_type = kind
            dtype = torch.float16 if dtype is None else dtype  # CUDA's default
        init(self, device_type, dtype, *args, **kwargs)

    return redirected


def _scaler(init: Any, kind: str) -> Any:
    @functools.wraps(init)
    def redirected(self: Any, device: str = "cuda", *args: Any, **kwargs: Any) -> None:
        if str(device).split(":")[0] == "cuda":
            note("torch.GradScaler", "cuda", sys._getframe(1).f_globals.get("__name__", ""))
            device = kind
        init(self, device, *args, **kwargs)

    return redirected


def install(changes: Patches, kind: str) -> None:
    """The classes stay the same; what they are told changes."""
    autocast_mode = importlib.import_module("torch.amp.autocast_mode")
    changes.patch(
        autocast_mode.autocast, "__init__", _autocast(autocast_mode.autocast.__init__, kind)
    )
    scaler = torch.amp.GradScaler
    changes.patch(scaler, "__init__", _scaler(scaler.__init__, kind))
    common = importlib.import_module("torch.cuda.amp.common")
    changes.patch(common, "amp_definitely_not_available", lambda: False)
    amp = importlib.import_module("torch.cuda.amp")
    modes = importlib.import_module("torch.cuda.amp.autocast_mode")
    for name in ("custom_fwd", "custom_bwd"):
        function = functools.partial(getattr(torch.amp, name), device_type=kind)
        for module in (amp, modes):
            changes.patch(module, name, function)
