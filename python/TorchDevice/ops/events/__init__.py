"""Events of the device in use."""

from . import cuda, mps, sync

__all__ = ["cuda", "mps", "sync"]
