"""Memory, streams, events and autograd, under the names of the original TorchDevice."""

from . import autograd, events, memory, nn, streams

__all__ = ["autograd", "events", "memory", "nn", "streams"]
