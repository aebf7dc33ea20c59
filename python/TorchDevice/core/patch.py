"""Turning the redirect on and off."""

from .._state import disable, enable, is_enabled

__all__ = ["apply_patches", "disable", "enable", "ensure_patched", "is_enabled"]


def apply_patches() -> None:
    """Turns the redirect on unless it is on."""
    if not is_enabled():
        enable()


ensure_patched = apply_patches
