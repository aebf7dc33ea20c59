"""Streams of the device module: PyTorch's own classes, which ask the device guard."""

from __future__ import annotations

import torch

from ._backend import DeviceLike, existing_index, name

Stream = torch.Stream
Event = torch.Event


def current_stream(device: DeviceLike = None) -> torch.Stream:
    """The stream that calls on the device go to."""
    return torch.accelerator.current_stream(existing_index(device))


def default_stream(device: DeviceLike = None) -> torch.Stream:
    """The stream a device starts with."""
    kind = torch._C._autograd.DeviceType.PrivateUse1
    return torch.Stream(stream_id=0, device_index=existing_index(device), device_type=int(kind))


def set_stream(stream: torch.Stream | None) -> None:
    """Makes a stream and its device current; None changes nothing."""
    if stream is not None:
        torch.accelerator.set_stream(stream)


class StreamContext:
    """Context manager: another current stream for a block. None changes nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        if stream is not None and stream.device.type != name():
            raise ValueError(f"Expected a {name()} stream, but got one of {stream.device}")
        self.stream = stream

    def __enter__(self) -> torch.Stream | None:
        if self.stream is not None:
            self.stream.__enter__()
        return self.stream

    def __exit__(self, *exception: object) -> None:
        if self.stream is not None:
            self.stream.__exit__(*exception)


def stream(stream: torch.Stream | None) -> StreamContext:
    """`with torch.remote.stream(s):` as with CUDA."""
    return StreamContext(stream)
