"""Streams and events for devices that run everything in order: the CPU, and MPS with one stream."""

from __future__ import annotations

import threading
import time
from typing import Any

import torch

from ._log import warn_once
from ._recorder import current_recorder


class Stream(torch.Stream):  # type: ignore[misc]
    """A stream of a device that has only one: what is put on it is done in the program's order."""

    def __new__(cls, device: Any = None, priority: int = 0, **ids: Any) -> Any:
        warn_once("torch.cuda.Stream", "runs everything in the program's order here")
        stream = super().__new__(cls, device="cpu")
        stream.priority = priority
        return stream

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    cuda_stream = 0

    def __eq__(self, other: object) -> bool:
        return self is other  # torch compares ids, and there is one for all streams of the CPU

    __hash__ = object.__hash__

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return current_recorder() is not None

    def wait_event(self, event: Any) -> None:
        """Nothing to wait for: the event was recorded by an earlier call."""

    def wait_stream(self, stream: Any) -> None:
        """Nothing to wait for: there is one order."""

    def record_event(self, event: Any = None) -> Any:
        event = torch.cuda.Event() if event is None else event
        event.record(self)
        return event

    def __enter__(self) -> Any:
        _streams.entered.append(self)
        return self

    def __exit__(self, *exception: object) -> None:
        _streams.entered.pop()

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return 0, 0


class _DefaultStream(Stream):
    """The one that every program has: nothing is weaker there."""

    def __new__(cls) -> Any:
        stream = torch.Stream.__new__(cls, device="cpu")
        stream.priority = 0
        return stream


class Event:
    """An event that takes the host's time when it is recorded."""

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> None:
        if interprocess:
            raise NotImplementedError("events of this device cannot be sent to other processes")
        self.enable_timing = enable_timing
        self._time: int | None = None

    def record(self, stream: Any = None) -> None:
        if current_recorder() is None:
            torch.cuda.synchronize()  # what came before is done, so that the time is true
        self._time = time.perf_counter_ns()

    def wait(self, stream: Any = None) -> None:
        """Nothing to wait for: there is one order."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds between two records."""
        if not (self.enable_timing and end_event.enable_timing):
            raise ValueError("both events must be made with enable_timing=True")
        if self._time is None or end_event._time is None:
            raise ValueError("both events must be recorded before their time is read")
        return float(end_event._time - self._time) / 1e6


class StreamContext:
    """`with torch.cuda.stream(s):`; None changes nothing."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __enter__(self) -> Any:
        if self.stream is not None:
            _streams.entered.append(self.stream)
        return self.stream

    def __exit__(self, *exception: object) -> None:
        if self.stream is not None:
            _streams.entered.pop()


class _Streams(threading.local):
    """The streams whose blocks this thread is in, the innermost last."""

    def __init__(self) -> None:
        self.entered: list[Any] = []


_streams = _Streams()
_default: list[Any] = []


def default_stream(device: Any = None) -> Any:
    if not _default:
        _default.append(_DefaultStream())
    return _default[0]


def current_stream(device: Any = None) -> Any:
    return _streams.entered[-1] if _streams.entered else default_stream()


def set_stream(stream: Any) -> None:
    if stream is not None:
        _streams.entered[:] = [stream]
