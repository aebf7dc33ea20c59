"""`torch.autograd.Variable`."""

from torch.autograd import Variable

__all__ = ["Variable"]
