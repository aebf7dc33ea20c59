"""Device management: `torch_modal.modal.is_available()`. `torch.modal` has more functions."""

from __future__ import annotations

from typing import Any

from torch_remote import _backend
from torch_remote.backends import modal as _modal

from . import _switch

__all__ = ["get_device_name"]  # and the names of torch_remote.backends.modal
__all__ += [name for name in _modal.__all__ if name != "get_device_name"]


def get_device_name(device: _backend.DeviceLike = None) -> str:
    """`Modal Device` on the embedded server, which it does not start; else the GPU's name."""
    index = _backend.existing_index(device)
    if _switch.is_embedded(index):
        return "Modal Device"
    return _modal.get_device_name(index)


def __getattr__(attribute: str) -> Any:
    if attribute in _modal.__all__:
        return getattr(_modal, attribute)
    raise AttributeError(f"module {__name__!r} has no attribute {attribute!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
