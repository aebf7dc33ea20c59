"""`torch.autocast("cuda")` and `GradScaler("cuda")` mean the device in use."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from typing import Any

import torch

from torch_remote_patches import Patches

from . import _C
from ._own import note

_REDIRECTED = ("cuda", "mps")


def _used(kind: str) -> str:
    """The device in use: the CPU under the override, which torch.compile cannot ask for."""
    is_overridden = not torch.compiler.is_dynamo_compiling() and _C.is_overridden()
    return "cpu" if is_overridden else kind


def _autocast(init: Any, kind: str) -> Any:
    @functools.wraps(init)
    def redirected(
        self: Any, device_type: str, dtype: torch.dtype | None = None, *args: Any, **kwargs: Any
    ) -> None:
        if device_type in _REDIRECTED and device_type != kind:
            if not torch.compiler.is_dynamo_compiling():
                note("torch.autocast", device_type, sys._getframe(1).f_globals.get("__name__", ""))
            device_type = _used(kind)
            if dtype is None and device_type != "cpu":  # which has a default of its own
                dtype = torch.float16  # the default of CUDA and MPS
        init(self, device_type, dtype, *args, **kwargs)

    return redirected


def _scaler(init: Any, kind: str) -> Any:
    @functools.wraps(init)
    def redirected(self: Any, device: str = "cuda", *args: Any, **kwargs: Any) -> None:
        if str(device).split(":")[0] == "cuda":
            if not torch.compiler.is_dynamo_compiling():
                note("torch.GradScaler", "cuda", sys._getframe(1).f_globals.get("__name__", ""))
            device = _used(kind)
        init(self, device, *args, **kwargs)

    return redirected


def _custom(original: Any, kind: str) -> Any:
    """custom_fwd() and custom_bwd(), which take the name of a device."""

    @functools.wraps(original)
    def redirected(fwd: Any = None, *, device_type: str, **kwargs: Any) -> Any:
        used = kind if device_type in _REDIRECTED else device_type
        return original(fwd, device_type=used, **kwargs)

    return redirected


def _default_to_bfloat16(changes: Patches, init: Any) -> None:
    """`torch.cuda.amp.autocast()` names float16, and the default of the CPU is bfloat16."""
    function = inspect.unwrap(init)
    before = function.__defaults__
    changes.on_undo(lambda: setattr(function, "__defaults__", before))
    function.__defaults__ = tuple(
        torch.bfloat16 if each is torch.float16 else each for each in before
    )


def _skip(functions: Any, eval_frame: Any) -> None:
    """torch.compile, which does not compile torch's own __init__ of these, leaves ours too."""
    if not hasattr(eval_frame, "skip_code"):
        return
    for each in functions:
        eval_frame.skip_code(each.__code__)


def install(changes: Patches, kind: str) -> None:
    """The classes stay the same; what they are told changes."""
    autocast_mode = importlib.import_module("torch.amp.autocast_mode")
    changes.patch(
        autocast_mode.autocast, "__init__", _autocast(autocast_mode.autocast.__init__, kind)
    )
    scaler = torch.amp.GradScaler
    changes.patch(scaler, "__init__", _scaler(scaler.__init__, kind))
    inits = (autocast_mode.autocast.__init__, scaler.__init__)
    changes.change_module("torch._dynamo.eval_frame", functools.partial(_skip, inits))
    common = importlib.import_module("torch.cuda.amp.common")
    changes.patch(common, "amp_definitely_not_available", lambda: False)
    amp = importlib.import_module("torch.cuda.amp")
    modes = importlib.import_module("torch.cuda.amp.autocast_mode")
    if kind == "cpu":
        _default_to_bfloat16(changes, modes.autocast.__init__)
    for name in ("custom_fwd", "custom_bwd"):
        original = getattr(torch.amp, name)
        for module in (amp, modes):
            changes.patch(module, name, functools.partial(original, device_type=kind))
        for module in (torch.amp, autocast_mode):
            changes.patch(module, name, _custom(original, kind))
