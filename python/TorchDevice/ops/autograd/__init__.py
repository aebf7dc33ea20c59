"""Autograd needs nothing of its own under redirect."""

from . import function, grad_mode, variable

__all__ = ["function", "grad_mode", "variable"]
