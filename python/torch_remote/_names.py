"""Two packages in one process, torch_remote and torch_modal, with one backend that has one name.

The package that is imported first chooses the name, `remote` or `modal`. The other package's
methods and device module work too, under its own name; only device strings know one name.
"""

from __future__ import annotations

import sys

import torch

from . import _device, _patches
from ._backend import PACKAGES, name


def other_name() -> str:
    """The name that is not in force."""
    return next(each for each in PACKAGES if each != name())


def alias() -> None:
    """Makes `torch.<other>`, `Tensor.<other>()`, `Tensor.is_<other>` and so on work."""
    other = other_name()
    owners = (
        torch.Tensor,
        torch.nn.Module,
        torch.nn.utils.rnn.PackedSequence,
        torch.storage._StorageBase,
        torch.storage.TypedStorage,
    )
    for owner in owners:
        for prefix in ("", "is_"):
            found = vars(owner).get(prefix + name())
            if found is not None:
                _patches.patch(owner, prefix + other, found)
    _patches.patch(torch, other, _device)
    for module in ("", ".amp", ".memory", ".random", ".streams"):
        _patches.patch_item(
            sys.modules, f"torch.{other}{module}", sys.modules[f"torch.{name()}{module}"]
        )
