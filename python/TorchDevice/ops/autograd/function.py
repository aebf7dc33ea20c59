"""`torch.autograd.Function`."""

from torch.autograd import Function

__all__ = ["Function"]
