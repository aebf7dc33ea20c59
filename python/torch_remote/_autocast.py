"""`torch.autocast` on our device, which casts nothing yet: the first block that asks for it says so."""

from __future__ import annotations

import functools
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from ._backend import name

_LIBRARIES = tuple(f"{Path(file).parent}/" for file in (torch.__file__, __file__))


def _level_of_user() -> int:
    """The stacklevel, seen from our caller, of the innermost frame that is neither torch's nor ours."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        level, frame = level + 1, frame.f_back
    return level


def install() -> None:
    """One warning for each process. To be called once."""
    autocast: Any = torch.amp.autocast_mode.autocast
    enter = autocast.__enter__
    has_warned = False

    @functools.wraps(enter)
    def checked(self: Any) -> Any:
        nonlocal has_warned
        if not has_warned and self.device == name() and self._enabled:
            has_warned = True
            warnings.warn(
                f'torch.autocast("{name()}") casts nothing yet: operators run in the dtypes of their '
                "inputs; for lower precision now, convert the model and its inputs",
                stacklevel=_level_of_user(),
            )
        return enter(self)

    autocast.__enter__ = checked
