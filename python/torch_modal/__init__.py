"""The device `modal`: `torch.randn(2, 2).modal()`.

Importing this package names PyTorch's private backend `modal`, unless torch_remote was imported
first and has named it `remote`. It starts nothing: the first tensor does.
"""

from __future__ import annotations

import warnings

import torch

import torch_remote
from torch_remote import _backend, _config, _device, _names, _patches

from . import _C, _switch, modal
from ._switch import (
    disable_remote_execution,
    enable_remote_execution,
    is_remote_execution_enabled,
)

__all__ = [
    "__version__",
    "disable_remote_execution",
    "enable_remote_execution",
    "is_remote_execution_enabled",
    "modal",
]

__version__ = torch_remote.__version__


def _change_torch() -> None:
    """Makes all changes that `torch_remote._patches.undo_all()` takes back."""
    _names.alias()
    _patches.patch(torch.Tensor, "modal", _C.to_modal)
    for function in (
        disable_remote_execution,
        enable_remote_execution,
        is_remote_execution_enabled,
    ):
        _patches.patch(_device, function.__name__, function)


if _backend.name() == "modal":
    _backend.simulate(2)
else:
    warnings.warn(
        f"torch_remote was imported before torch_modal, so these devices are called "
        f"{_backend.name()!r} in this process: write {_backend.name()!r} in device strings, or "
        "import torch_modal first. The methods and modules of both work.",
        stacklevel=2,
    )
_config.choose_default = _switch.choose_default
torch_remote._C.let_start_choose()  # else C++ would connect to TORCH_REMOTE without asking
torch_remote._also_change(_change_torch)
