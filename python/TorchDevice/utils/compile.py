"""`torch.compile`, which works as before under redirect."""

from torch import compile

__all__ = ["compile"]
