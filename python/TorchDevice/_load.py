"""`torch.load`: a file saved on `cuda:0`, or `map_location="cuda"`, goes where cuda goes.

A `map_location` that is a dict or a function is told `cuda:0` for the tensors of the device in use,
also for those of a file that this program has written: the file has the device's own name.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from torch_remote_patches import Patches

from . import _C
from ._claim import claimed

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


def _told(location: str) -> list[str]:
    """What a program calls the place of a file's tensors, best first, then the file's own name."""
    accelerator = _C.accelerator()
    kind = torch._C._get_privateuse1_backend_name() if accelerator == "remote" else accelerator
    name, _, index = location.partition(":")
    if name != kind or kind in ("cpu", claimed()):
        return [location]
    index = index or "0"
    if claimed() == "mps":  # torch's files have no index for it
        return ["mps" if index == "0" else f"mps:{index}", f"mps:{index}", location]
    return [f"{claimed()}:{index}", location]


def _by_dict(map_location: dict[str, Any], storage: Any, location: str) -> Any:
    for name in _told(location):
        if name in map_location:
            return torch.serialization.default_restore_location(storage, map_location[name])
    return None  # torch uses the file's own name


def _by_function(map_location: Any, storage: Any, location: str) -> Any:
    return map_location(storage, _told(location)[0])


def _telling(get_restore_location: Any) -> Any:
    @functools.wraps(get_restore_location)
    def call(map_location: Any) -> Any:
        if isinstance(map_location, dict):
            map_location = functools.partial(_by_dict, map_location)
        elif callable(map_location) and not isinstance(map_location, torch.device):
            map_location = functools.partial(_by_function, map_location)
        return get_restore_location(map_location)

    return call


def install(changes: Patches) -> None:
    torch.serialization.register_package(_PRIORITY, _no_tag, _restore)
    registry = torch.serialization._package_registry
    entry = next(each for each in registry if each[2] is _restore)
    changes.on_undo(lambda: registry.remove(entry))
    changes.wrap(torch.serialization, "_get_restore_location", _telling)
