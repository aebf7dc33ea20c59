"""Restores optimizers after a failed call.

The server discards the calls of a stopped thread (docs/errors.md). But in Python the thread has
gone on: a `step()` has counted itself, and may have made state of values that do not exist. So each
`step()` first notes what it finds. When the failure is raised, the steps that ended after the
failing call, and the one that runs, get it back: the optimizer's state, the entries of
`param_groups` that `step()` changed, and what a `GradScaler` knew of its optimizers. Missing
gradients of leaves become `None`. Nothing else is restored.

With `TORCH_REMOTE_CHECK_STEPS=1` every `step()` first waits for the calls before it.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from . import _C, _backend
from ._patches import on_undo, patch

State = dict[Any, Any]


@dataclass(eq=False)
class _Note:
    """What a step of an optimizer, or a method of a `GradScaler`, has found."""

    thread: int
    begin: dict[int, int]  # the last call of each session before it
    found: _Optimizer | _Scaler
    end: dict[int, int] | None = None  # the last call of each session in it; None: it runs


_notes: weakref.WeakKeyDictionary[Any, deque[_Note]] = weakref.WeakKeyDictionary()


def _begin(owner: object, devices: Iterable[int], found: _Optimizer | _Scaler) -> _Note:
    thread = _C.current_thread()
    calls = dict(_C.call_number(device) for device in devices)
    notes = _notes.setdefault(owner, deque())
    for note in _aborted(owner, notes, thread, running=_depth(owner) - 1):
        note.end = {session: calls.get(session, last) for session, last in note.begin.items()}
    _forget_done(notes)
    notes.append(_Note(thread, calls, found))
    return notes[-1]


def _aborted(owner: object, notes: deque[_Note], thread: int, running: int) -> list[_Note]:
    """Steps that ended with an exception: PyTorch calls no hook after them."""
    unended = [note for note in notes if note.end is None and note.thread == thread]
    return [] if isinstance(owner, GradScaler) else unended[: len(unended) - max(running, 0)]


def _end(note: _Note, devices: Iterable[int]) -> None:
    calls = dict(_C.call_number(device) for device in devices)
    note.end = {session: calls.get(session, last) for session, last in note.begin.items()}


def _forget_done(notes: deque[_Note]) -> None:
    """The server reports a failure before it says that the call is done."""
    done = 0
    for note in notes:
        if note.end is None or any(_C.calls_done(of) < call for of, call in note.end.items()):
            break
        done += 1
    if done and not any(_C.has_failure(note.thread) for note in notes):  # asked last
        for _ in range(done):
            notes.popleft()


def _depth(owner: object) -> int:
    """How many step() of it are running, one inside the other: that of a subclass calls its base's.

    Looks at all threads: autograd's worker may raise the failure of the thread that called it.
    """
    depths = []
    for top in sys._current_frames().values():
        depth = 0
        frame: FrameType | None = top
        while frame is not None:
            args = frame.f_locals.get("args") if frame.f_code.co_name == "wrapper" else None
            depth += isinstance(args, tuple) and bool(args) and args[0] is owner
            frame = frame.f_back
        depths.append(depth)
    return max(depths)


def _take_back(session: int, since: int) -> None:
    """This thread is stopped: what it did since that call has not happened.

    Ctrl-C in the middle does not leave a part of it: it begins again, and raises at the end.
    """
    interrupt = None
    while True:
        try:
            _restore_all(session, since)
            break
        except KeyboardInterrupt as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt


def _restore_all(session: int, since: int) -> None:
    thread = _C.current_thread()
    with torch.no_grad():
        for owner, notes in list(_notes.items()):
            aborted = _aborted(owner, notes, thread, running=_depth(owner))
            for note in [note for note in reversed(notes) if note.thread == thread]:
                is_late = note.end is None or note.end.get(session, 0) >= since
                if is_late and note not in aborted:
                    _restore(owner, note)
                    notes.remove(note)
        for leaf in _leaves():
            if leaf.grad is not None and _C.is_missing(session, since, leaf.grad):
                leaf.grad = None


def _restore(owner: Any, note: _Note) -> None:
    try:
        note.found.restore(owner)
    except Exception as error:  # the other optimizers are restored all the same
        kind = type(owner).__name__
        warnings.warn(f"{kind} is not restored after a failed call: {error}", stacklevel=2)


def _leaves() -> Iterator[Tensor]:
    with torch._C.DisableTorchFunctionSubclass():
        for each in gc.get_objects():
            if issubclass(type(each), Tensor) and each.is_leaf and each.grad is not None:
                yield each


# --- optimizers


def _is_counter(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_cpu and value.dim() == 0


def _devices(optimizer: Optimizer) -> set[int]:
    parameters = (each for group in optimizer.param_groups for each in group["params"])
    return {each.device.index or 0 for each in parameters if _backend.is_ours(each)}


class _Optimizer:
    """Its state and groups. Of tensors on the CPU without dimensions, counters, also the values."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.state_id = id(optimizer.state)  # load_state_dict() makes another
        self.state = {owner: self._copy(state) for owner, state in optimizer.state.items()}
        self.groups = [
            {key: value for key, value in group.items() if key != "params"}
            for group in optimizer.param_groups
        ]
        dicts = [of for of in (*self.state.values(), *self.groups) if isinstance(of, dict)]
        self.counters = [value for of in dicts for value in of.values() if _is_counter(value)]
        values = [counter.double() for counter in self.counters]
        self.values = torch.stack(values) if values else None

    @staticmethod
    def _copy(state: Any) -> Any:
        if not isinstance(state, dict):
            return state
        return {k: list(v) if isinstance(v, list) else v for k, v in state.items()}

    def keep_changed(self, optimizer: Optimizer) -> None:
        """Only entries of the groups that the step has changed are its own to restore."""
        for group, before in zip(optimizer.param_groups, self.groups, strict=False):
            for key in [key for key, value in before.items() if group.get(key) is value]:
                del before[key]

    def restore(self, optimizer: Optimizer) -> None:
        if id(optimizer.state) != self.state_id:
            return
        for owner in [owner for owner in optimizer.state if owner not in self.state]:
            del optimizer.state[owner]
        for owner, before in self.state.items():
            state = optimizer.state[owner]
            if isinstance(state, dict) and isinstance(before, dict):
                state.clear()
                state.update(before)
            else:
                optimizer.state[owner] = before
        for group, before in zip(optimizer.param_groups, self.groups, strict=False):
            group.update(before)
        if self.values is not None:
            for counter, value in zip(self.counters, self.values, strict=True):
                counter.copy_(value)


def _before_step(optimizer: Optimizer, *_: Any) -> None:
    devices = _devices(optimizer)
    if not devices:
        return
    if os.environ.get("TORCH_REMOTE_CHECK_STEPS") == "1":
        for device in devices:
            _C.synchronize(device)
    _begin(optimizer, devices, _Optimizer(optimizer))


def _after_step(optimizer: Optimizer, *_: Any) -> None:
    # The last that has not ended: the step() of a subclass calls that of its base.
    unended = [note for note in _notes.get(optimizer, ()) if note.end is None]
    if unended and isinstance(unended[-1].found, _Optimizer):
        _end(unended[-1], _devices(optimizer))
        unended[-1].found.keep_changed(optimizer)


# --- GradScaler


class _Scaler:
    """What a `GradScaler` knows of its optimizers."""

    def __init__(self, scaler: GradScaler) -> None:
        self.known = {of: dict(state) for of, state in scaler._per_optimizer_states.items()}

    def restore(self, scaler: GradScaler) -> None:
        scaler._per_optimizer_states.clear()
        scaler._per_optimizer_states.update(self.known)


def _all_devices() -> set[int]:
    return {index for machine in _C.machine_ids() for index in _C.machine_summary(machine)[1]}


def _noted(change: Callable[..., Any]) -> Callable[..., Any]:
    """`change` is a method of GradScaler that changes what it knows of its optimizers."""

    @functools.wraps(change)
    def noted(scaler: GradScaler, *args: Any, **kwargs: Any) -> Any:
        if not scaler._enabled or not _C.is_initialized():
            return change(scaler, *args, **kwargs)
        note = _begin(scaler, _all_devices(), _Scaler(scaler))
        try:
            return change(scaler, *args, **kwargs)
        finally:
            _end(note, _all_devices())

    return noted


def install() -> None:
    on_undo(register_optimizer_step_pre_hook(_before_step).remove)
    on_undo(register_optimizer_step_post_hook(_after_step).remove)
    for name in ("unscale_", "step", "update"):
        patch(GradScaler, name, _noted(vars(GradScaler)[name]))
    _C.set_take_back(_take_back)
