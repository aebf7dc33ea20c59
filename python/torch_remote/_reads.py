"""`torch_remote.read(tensor)`: a value that arrives while the program goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

import torch

from . import _C
from ._backend import is_ours, refuse_in_bad_fork


class ReadFuture:
    """The value of a tensor, on its way to this process.

    `await future` gives the value to a task of asyncio; its event loop goes on meanwhile.
    """

    def __init__(self, pending: _C.PendingRead | None, value: torch.Tensor | None) -> None:
        self._pending = pending
        self._value = value

    def done(self) -> bool:
        """Whether `result()` returns, or raises, without waiting."""
        return self._pending is None or self._pending.is_done()

    def result(self, timeout: float | None = None) -> torch.Tensor:
        """The value, as a CPU tensor; always the same one. Waits for it.

        Raises the error of the call that failed to make it, each time it is called, and
        `TimeoutError` after `timeout` seconds.
        """
        pending = self._pending
        if pending is not None:
            if timeout is not None and not pending.wait_for(max(0, round(timeout * 1000))):
                raise TimeoutError(f"torch_remote.read(): no value within {timeout} s")
            self._value = pending.result()
            self._pending = None
        assert self._value is not None
        return self._value

    def wait(self) -> torch.Tensor:
        """The same as `result()`, for users of `torch.futures`."""
        return self.result()

    def __await__(self) -> Generator[Any, None, torch.Tensor]:
        if self._pending is not None and not self.done():
            yield from _waiters_of(asyncio.get_running_loop()).until_done(self._pending)
        return self.result()

    def __repr__(self) -> str:
        return f"<torch_remote.ReadFuture {'done' if self.done() else 'pending'}>"


def read(tensor: torch.Tensor) -> ReadFuture:
    """Asks for the value that a tensor has at this place of the program, and does not wait.

    Later changes to the tensor do not change the value. If a call before has failed, `result()`
    raises its error. A tensor that is on no remote device is copied at once.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"torch_remote.read() takes a tensor, not {type(tensor).__name__}")
    source = tensor.detach()
    if not is_ours(source):
        return ReadFuture(None, source.to("cpu", copy=True))
    is_wrapper = torch.utils._python_dispatch.is_traceable_wrapper_subclass(source)
    if source.layout != torch.strided or source.is_nested or is_wrapper:
        kind = "nested" if source.is_nested else str(source.layout).removeprefix("torch.")
        raise NotImplementedError(
            f"torch_remote.read() takes dense tensors; read the parts of this "
            f"{type(tensor).__name__} ({kind}), such as values(), offsets() or unbind()"
        )
    refuse_in_bad_fork()
    return ReadFuture(_C.start_read(source.clone() if source._is_zerotensor() else source), None)


class _LoopWaiters:
    """The reads that tasks of one event loop wait for. Confined to the loop's thread.

    One descriptor tells the loop that some of them may be done, so many reads need no more.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.signal = _C.DoneSignal()
        self.waiting: dict[asyncio.Future[None], _C.PendingRead] = {}

    def until_done(self, pending: _C.PendingRead) -> Generator[Any, None, None]:
        waiter: asyncio.Future[None] = self.loop.create_future()
        if not self.waiting:
            self.loop.add_reader(self.signal.fileno(), self._wake)
        self.waiting[waiter] = pending
        try:
            pending.signal_when_done(self.signal)
            yield from waiter
        finally:  # also if the task is cancelled
            del self.waiting[waiter]
            if not self.waiting:
                self.loop.remove_reader(self.signal.fileno())
                _waiters.pop(self.loop, None)

    def _wake(self) -> None:
        self.signal.clear()
        for waiter, pending in self.waiting.items():
            if pending.is_done() and not waiter.done():
                waiter.set_result(None)


_waiters: dict[asyncio.AbstractEventLoop, _LoopWaiters] = {}


def _waiters_of(loop: asyncio.AbstractEventLoop) -> _LoopWaiters:
    found = _waiters.get(loop)
    if found is None:
        found = _waiters[loop] = _LoopWaiters(loop)
    return found
