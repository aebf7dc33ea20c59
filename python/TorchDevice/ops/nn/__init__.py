"""`torch.nn` needs nothing of its own under redirect. The original TorchDevice has these parts."""

from torch.nn import *  # noqa: F403

from . import activation, attention, containers, init, layers, normalization  # noqa: F401
