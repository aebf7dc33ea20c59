"""`torch.autocast("cuda")` and `GradScaler("cuda")` mean the device in use.

Under the policy `full` so does `torch.autocast("cpu")`, because tensors of the CPU are there.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from typing import Any

import torch

from torch_remote_patches import Patches

from . import _C
from ._callers import limit
from ._own import note

_REDIRECTED = ("cuda", "mps")
# They make an autocast that the program asked for: torch.compile, torch.cpu.amp.autocast().
_FOR_PROGRAM = ("torch.amp.autocast_mode", "torch.cpu.amp.autocast_mode")
_DEFAULT_DTYPES = {"cuda": torch.float16, "mps": torch.float16, "cpu": torch.bfloat16}


def _used(kind: str) -> str:
    """The device in use: the CPU under the override, which torch.compile cannot ask for."""
    is_overridden = not torch.compiler.is_dynamo_compiling() and _C.is_overridden()
    return "cpu" if is_overridden else kind


def _is_redirected(name: str, kind: str, caller: str) -> bool:
    if name != "cpu":
        return name in _REDIRECTED and name != kind
    if kind == "cpu" or torch.compiler.is_dynamo_compiling():
        return False
    is_program = limit(caller) == "full" and not caller.startswith("torch.")
    return (is_program or caller in _FOR_PROGRAM) and _C.decide("cpu")[0] is not None


def _caller() -> str:
    """The module that calls our caller."""
    return str(sys._getframe(2).f_globals.get("__name__", ""))


def _autocast(init: Any, kind: str) -> Any:
    @functools.wraps(init)
    def redirected(
        self: Any, device_type: str, dtype: torch.dtype | None = None, *args: Any, **kwargs: Any
    ) -> None:
        if _is_redirected(device_type, kind, _caller()):
            if not torch.compiler.is_dynamo_compiling():
                note("torch.autocast", device_type, _caller())
            asked, device_type = device_type, _used(kind)
            if dtype is None and device_type != "cpu":  # which has a default of its own
                dtype = _DEFAULT_DTYPES[asked]
        init(self, device_type, dtype, *args, **kwargs)

    return redirected


def _scaler(init: Any, kind: str) -> Any:
    @functools.wraps(init)
    def redirected(self: Any, device: str = "cuda", *args: Any, **kwargs: Any) -> None:
        if str(device).split(":")[0] == "cuda":
            if not torch.compiler.is_dynamo_compiling():
                note("torch.GradScaler", "cuda", _caller())
            device = _used(kind)
        init(self, device, *args, **kwargs)

    return redirected


def _custom(original: Any, kind: str) -> Any:
    """custom_fwd() and custom_bwd(), which take the name of a device."""

    @functools.wraps(original)
    def redirected(fwd: Any = None, *, device_type: str, **kwargs: Any) -> Any:
        is_redirected = device_type in _REDIRECTED or _is_redirected(device_type, kind, _caller())
        used = kind if is_redirected else device_type
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
