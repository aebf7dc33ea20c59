"""Devices, patches and the log, under the names of the original TorchDevice."""

from . import device, hardware_info, logger, modules, patch, tensors

__all__ = ["device", "hardware_info", "logger", "modules", "patch", "tensors"]
