"""`torch.nn` needs nothing of its own under redirect."""

from torch.nn import *  # noqa: F403
