"""Helpers."""

from . import compile, device_utils, error_handling, profiling, type_utils

__all__ = ["compile", "device_utils", "error_handling", "profiling", "type_utils"]
