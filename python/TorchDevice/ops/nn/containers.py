"""Containers of `torch.nn`."""

from torch.nn.modules.container import *  # noqa: F403
