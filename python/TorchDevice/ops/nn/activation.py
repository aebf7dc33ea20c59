"""Activations of `torch.nn`."""

from torch.nn.modules.activation import *  # noqa: F403
