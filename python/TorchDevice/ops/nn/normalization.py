"""Normalization layers of `torch.nn`."""

from torch.nn.modules.batchnorm import *  # noqa: F403
from torch.nn.modules.instancenorm import *  # noqa: F403
from torch.nn.modules.normalization import *  # noqa: F403
