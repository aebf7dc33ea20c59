"""Helpers. What the original TorchDevice has beside these is in _paths.py."""

from . import device_utils as device_utils
from . import error_handling as error_handling
from . import profiling as profiling
