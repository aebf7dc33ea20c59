"""`torch.profiler` and `torch.autograd.profiler` for our device: Note [Profiles] in
src/client/backend/profiler.h has how it works.

The changes here are to `torch.autograd.profiler.profile`, which `torch.profiler.profile` uses too.
"""

from __future__ import annotations

import functools
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.autograd import ProfilerActivity, ProfilerState

from . import _C, _waits
from ._backend import name
from ._patches import patch

_LIBRARIES = tuple(f"{Path(file).parent}/" for file in (torch.__file__, __file__))


def _warn(text: str) -> None:
    """Warns at the innermost line outside torch and torch_remote."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, stacklevel=level)


def _redirected(use_device: str | None) -> str | None:
    """What TorchDevice, if it redirects to our device, makes of a profile of CUDA."""
    masquerade = sys.modules.get("TorchDevice._masquerade")
    target = None if masquerade is None else masquerade.current_target()
    is_redirected = use_device == "cuda" and target is not None and target.kind == name()
    return name() if is_redirected else use_device


def _use_kineto(profile: Any) -> None:
    """Makes a profile of our device one of Kineto's, which is what we give times to.

    Without this, PyTorch records its own events around every operator for `use_kineto=False`, and
    for every profile where torch 2.11 was built with CUDA.
    """
    profile.profiler_kind = getattr(ProfilerState, "KINETO_PRIVATEUSE1", ProfilerState.KINETO)
    profile.kineto_activities.add(ProfilerActivity.PrivateUse1)


def _change_init(profile: Any) -> None:
    init = profile.__init__

    @functools.wraps(init)
    def changed(self: Any, enabled: bool = True, **options: Any) -> None:
        use_device = _redirected("cuda" if options.get("use_cuda") else options.get("use_device"))
        is_ours = enabled and use_device == name()
        if is_ours:
            options.update(use_device=use_device, use_cuda=False)
        if is_ours and not _C.has_profiler():
            _warn(f"this build of torch cannot profile {name()} devices: profiling this process")
            options["use_device"] = None
            is_ours = False
        init(self, enabled, **options)
        if is_ours:
            _use_kineto(self)

    patch(profile, "__init__", changed)


def _change_start_and_end(profile: Any) -> None:
    start, end = profile._start_trace, profile.__exit__

    @functools.wraps(start)
    def started(self: Any) -> None:
        _C.profile_memory(self.profile_memory)
        start(self)
        self._torch_remote_waits = _waits.waits_by_line()

    @functools.wraps(end)
    def ended(self: Any, *error: Any) -> Any:
        before = getattr(self, "_torch_remote_waits", None)
        if self.enabled and before is not None:
            self._torch_remote_waits = _waits.waits_since(before)
            _C.profile_memory(False)
        try:
            result = end(self, *error)
        except RuntimeError:  # a call had failed: end() raises that before it stops the profiler
            if self.enabled and torch.autograd._profiler_enabled():
                device, self.use_device = self.use_device, None  # so that it does not wait again
                end(self, *error)
                self.use_device = device
            raise
        for note in _C.take_profile_notes():
            _warn(note)
        return result

    patch(profile, "_start_trace", started)
    patch(profile, "__exit__", ended)


def install() -> None:
    profile: Any = torch.autograd.profiler.profile
    _change_init(profile)
    _change_start_and_end(profile)
