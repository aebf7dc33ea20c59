"""Devices, patches and the log, under the names of the original TorchDevice: see _paths.py."""

from . import device as device
