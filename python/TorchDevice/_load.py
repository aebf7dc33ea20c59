"""`torch.load`: a file saved on `cuda:0`, or `map_location="cuda"`, goes where cuda goes."""

from __future__ import annotations

from typing import Any

import torch

from torch_remote_patches import Patches

from . import _C

_PRIORITY = 1  # before torch's own, which start at 10


def _no_tag(storage: Any) -> None:
    """Files say where their tensors really were."""


def _restore(storage: Any, location: str) -> Any:
    """The storage on the device used instead; None: torch's own functions do it."""
    used, _ = _C.decide(location)
    if used is None or location.startswith("cpu:-"):
        return None
    _C.note_redirect("torch.load", location)
    return storage if used.type == "cpu" else storage.to(device=used)


def install(changes: Patches) -> None:
    torch.serialization.register_package(_PRIORITY, _no_tag, _restore)
    registry = torch.serialization._package_registry
    entry = next(each for each in registry if each[2] is _restore)
    changes.on_undo(lambda: registry.remove(entry))
