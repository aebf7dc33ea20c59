"""Streams of the device module: CUDA's interface over PyTorch's classes, which ask the guard."""

from __future__ import annotations

from typing import Any

import torch

from ._backend import DeviceLike, device_index, existing_index, name

_FIRST_HIGH = 33  # the upper half of a device's 64 streams: Note [Streams] in wire/streams.h
_LEAST, _GREATEST = 0, -1


def _as_device(device: DeviceLike) -> torch.device:
    """The device that is meant; None and a negative index mean the current one."""
    index = device_index(device)
    return torch.device(name(), device_index(None) if index < 0 else index)


class Stream(torch.Stream):  # type: ignore[misc]  # mypy sees Any
    """A stream of a device; a negative priority asks for a high one."""

    def __new__(cls, device: DeviceLike = None, priority: int = 0, **known: Any) -> Stream:
        if "stream_id" not in known:
            known = {"device": _as_device(device), "priority": priority}
        made: Stream = super().__new__(cls, **known)
        return made

    @property
    def priority(self) -> int:
        """0, or -1 for a stream of high priority."""
        return _GREATEST if self.stream_id >= _FIRST_HIGH else _LEAST

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The lowest and the highest priority; a stream made with another gets the nearest."""
        return _LEAST, _GREATEST

    def record_event(self, event: torch.Event | None = None) -> torch.Event:
        """Records an event, by default a new one, and returns it."""
        recorded = Event() if event is None else event
        recorded.record(self)
        return recorded


class _EventType(type):
    """Every event is an instance of `Event`."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Event)


class Event(torch.Event, metaclass=_EventType):  # type: ignore[misc]
    """An event, with the arguments of CUDA's: makes a `torch.Event`.

    Not of its own class: `elapsed_time()` refuses an object of a derived one. `blocking`,
    `interprocess` and `external` change nothing (`docs/like_cuda.md`).
    """

    def __new__(
        cls,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
        *,
        device: DeviceLike = None,
    ) -> torch.Event:
        return torch.Event(
            device=_as_device(device),
            enable_timing=enable_timing,
            blocking=blocking,
            interprocess=interprocess,
        )


def _stream_of(stream: torch.Stream) -> Stream:
    return Stream(
        stream_id=stream.stream_id,
        device_index=stream.device_index,
        device_type=stream.device_type,
    )


def current_stream(device: DeviceLike = None) -> Stream:
    """The stream that calls on the device go to."""
    return _stream_of(torch.accelerator.current_stream(existing_index(device)))


def default_stream(device: DeviceLike = None) -> Stream:
    """The stream a device starts with."""
    kind = torch._C._autograd.DeviceType.PrivateUse1
    return Stream(stream_id=0, device_index=existing_index(device), device_type=int(kind))


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
