"""Device functions by provider: `torch_remote.backends.modal`."""

from . import modal as modal

__all__ = ["modal"]
