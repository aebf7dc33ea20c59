"""What an optimizer has done on this side since a failed call is taken back when its thread is told.

A call fails after the program has gone on, perhaps through one or more `step()`. On the server it is as
if the thread had stopped at the failing call. On this side those steps have counted themselves, and may
have made state of what does not exist. So each `step()` notes what it finds; when its thread is told of
a failure, the steps that began after the failing call, or during which it failed, get back what they
found: the optimizer's state, the entries of `param_groups` that `step()` itself changed, and the stage
of a `GradScaler`. Gradients of leaves that do not exist become `None`. Nothing else is taken back
(docs/errors.md).

With `TORCH_REMOTE_CHECK_STEPS=1` every `step()` first waits for what came before it, so that a failure
is raised before anything has to be taken back.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
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
class _Step:
    """What a step has found. Tensors on the CPU without dimensions are counters: their values too."""

    thread: int
    begin: dict[int, int]  # the last call of each session before it
    end: dict[int, int]  # and of it
    state_is: int  # load_state_dict() makes another
    state: dict[Any, State]
    groups: list[State]
    counters: list[Tensor]
    values: Tensor | None
    changed: list[State] = field(default_factory=list)  # of `groups`: what the step changed


@dataclass(eq=False)
class _Stage:
    """What a `GradScaler` knew of its optimizers before it changed that."""

    thread: int
    begin: dict[int, int]  # the last call of each session before it
    end: dict[int, int]  # and of it
    known: dict[int, State]


_steps: weakref.WeakKeyDictionary[Optimizer, deque[_Step]] = weakref.WeakKeyDictionary()
_stages: weakref.WeakKeyDictionary[GradScaler, deque[_Stage]] = weakref.WeakKeyDictionary()


def _forget_done(notes: deque[Any]) -> None:
    """The server reports a failure before it says that the call is done."""
    done = 0
    for note in notes:
        has_ended = note.end is not note.begin
        if not has_ended or any(_C.calls_done(of) < call for of, call in note.end.items()):
            break
        done += 1
    if done and not _C.has_failure():  # asked last
        for _ in range(done):
            notes.popleft()


def _is_counter(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_cpu and value.dim() == 0


def _devices(optimizer: Optimizer) -> set[int]:
    parameters = (each for group in optimizer.param_groups for each in group["params"])
    return {each.device.index or 0 for each in parameters if _backend.is_ours(each)}


def _calls(devices: set[int]) -> dict[int, int]:
    return dict(_C.call_number(device) for device in devices)


def _calls_everywhere() -> dict[int, int]:
    return _calls(
        {index for machine in _C.machine_ids() for index in _C.machine_summary(machine)[1]}
    )


def _settings(group: State) -> State:
    return {key: value for key, value in group.items() if key != "params"}


def _look(optimizer: Optimizer, devices: set[int]) -> _Step:
    state = {
        owner: {key: list(value) if isinstance(value, list) else value for key, value in of.items()}
        if isinstance(of, dict)
        else of
        for owner, of in optimizer.state.items()
    }
    groups = [_settings(group) for group in optimizer.param_groups]
    dicts = [of for of in (*state.values(), *groups) if isinstance(of, dict)]
    counters = [value for of in dicts for value in of.values() if _is_counter(value)]
    values = torch.stack([each.double() for each in counters]) if counters else None
    calls = _calls(devices)
    return _Step(
        _C.current_thread(), calls, calls, id(optimizer.state), state, groups, counters, values
    )


def _before_step(optimizer: Optimizer, *_: Any) -> None:
    devices = _devices(optimizer)
    if not devices:
        return
    if os.environ.get("TORCH_REMOTE_CHECK_STEPS") == "1":
        for device in devices:
            _C.synchronize(device)
    steps = _steps.setdefault(optimizer, deque())
    _forget_done(steps)
    steps.append(_look(optimizer, devices))


def _after_step(optimizer: Optimizer, *_: Any) -> None:
    # The last that has not ended: the step() of a subclass calls that of its base.
    unended = [step for step in _steps.get(optimizer, ()) if step.end is step.begin]
    if not unended:
        return
    step = unended[-1]
    step.end = {of: _calls(_devices(optimizer)).get(of, last) for of, last in step.begin.items()}
    for group, before in zip(optimizer.param_groups, step.groups, strict=False):
        step.changed.append({k: v for k, v in before.items() if group.get(k) is not v})


def _restore(optimizer: Optimizer, step: _Step) -> None:
    if id(optimizer.state) != step.state_is:
        return
    for owner in [owner for owner in optimizer.state if owner not in step.state]:
        del optimizer.state[owner]
    for owner, before in step.state.items():
        state = optimizer.state[owner]
        if isinstance(state, dict) and isinstance(before, dict):
            state.clear()
            state.update(before)
        else:
            optimizer.state[owner] = before
    for group, before in zip(optimizer.param_groups, step.changed or step.groups, strict=False):
        group.update(before)
    if step.values is not None:
        for counter, value in zip(step.counters, step.values, strict=True):
            counter.copy_(value)


def _leaves() -> Iterator[Tensor]:
    for each in gc.get_objects():
        if issubclass(type(each), Tensor) and each.is_leaf and each.grad is not None:
            yield each


def _is_running(optimizer: Optimizer) -> bool:
    """Whether a thread is inside its step(). A worker of autograd may be told in its place."""
    for top in sys._current_frames().values():
        frame: FrameType | None = top
        while frame is not None:
            args = frame.f_locals.get("args") if frame.f_code.co_name == "wrapper" else None
            if isinstance(args, tuple) and args and args[0] is optimizer:
                return True
            frame = frame.f_back
    return False


@contextmanager
def _told_on_stderr(optimizer: Optimizer) -> Iterator[None]:
    """An optimizer that cannot be put back must not keep the others from it."""
    try:
        yield
    except Exception as error:
        warnings.warn(
            f"a step of {type(optimizer).__name__} is not taken back: {error}", stacklevel=2
        )


def _take_back_steps(session: int, since: int, thread: int) -> None:
    for optimizer, steps in list(_steps.items()):
        is_running = _is_running(optimizer)
        for step in [step for step in reversed(steps) if step.thread == thread]:
            has_ended = step.end is not step.begin
            is_late = step.end.get(session, 0) >= since if has_ended else is_running
            if is_late:
                steps.remove(step)
                with _told_on_stderr(optimizer):
                    _restore(optimizer, step)


def _take_back_stages(session: int, since: int, thread: int) -> None:
    for scaler, stages in list(_stages.items()):
        for stage in reversed(list(stages)):
            is_running = stage.end is stage.begin
            if stage.thread == thread and (is_running or stage.end.get(session, 0) >= since):
                stages.remove(stage)
                scaler._per_optimizer_states.clear()
                scaler._per_optimizer_states.update(stage.known)


def _take_back(session: int, since: int) -> None:
    thread = _C.current_thread()
    with torch.no_grad():
        _take_back_steps(session, since, thread)
        _take_back_stages(session, since, thread)
        for leaf in _leaves():
            if leaf.grad is not None and _C.is_missing(session, since, leaf.grad):
                leaf.grad = None


def _noting_stage(change: Callable[..., Any]) -> Callable[..., Any]:
    """`change` is a method of GradScaler that changes what it knows of its optimizers."""

    @functools.wraps(change)
    def noted(scaler: GradScaler, *args: Any, **kwargs: Any) -> Any:
        if not scaler._enabled or not _C.is_initialized():
            return change(scaler, *args, **kwargs)
        stages = _stages.setdefault(scaler, deque())
        _forget_done(stages)
        calls = _calls_everywhere()
        known = {of: dict(state) for of, state in scaler._per_optimizer_states.items()}
        stage = _Stage(_C.current_thread(), calls, calls, known)
        stages.append(stage)
        try:
            return change(scaler, *args, **kwargs)
        finally:
            stage.end = _calls_everywhere()

    return noted


def install() -> None:
    on_undo(register_optimizer_step_pre_hook(_before_step).remove)
    on_undo(register_optimizer_step_post_hook(_after_step).remove)
    for name in ("unscale_", "step", "update"):
        patch(GradScaler, name, _noting_stage(vars(GradScaler)[name]))
    _C.set_take_back(_take_back)
