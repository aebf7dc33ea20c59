"""Memory of the device in use."""

from . import management, stats

__all__ = ["management", "stats"]
