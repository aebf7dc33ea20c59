"""`x.storage().device` has the device's name that programs are told: `read_as` of `enable()`.

That of an untyped storage is a getter of C++ (`redirect/types.cpp`). Torch's TypedStorage reads it
for the program, and torch is told the truth.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.storage import TypedStorage, _warn_typed_storage_removal

from torch_remote_patches import Patches

from ._callers import truth_for_listed
from ._printing import real_name


def install(changes: Patches, read_as: Callable[[], str | None]) -> None:
    real: Any = vars(TypedStorage)["device"].fget

    def told(self: Any) -> torch.device:
        _warn_typed_storage_removal(3)
        found: torch.device = self._untyped_storage.device  # read from here: its own name
        name = read_as()
        # Called from TorchDevice: not redirected.
        return torch.device(name, found.index) if name and found.type == real_name() else found

    changes.patch(TypedStorage, "device", property(truth_for_listed(told, real)))
