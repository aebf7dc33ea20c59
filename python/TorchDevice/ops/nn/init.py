"""`torch.nn.init`: its functions draw on the device of their tensor."""

from torch.nn.init import *  # noqa: F403
