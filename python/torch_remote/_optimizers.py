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
import weakref
from collections import deque
from collections.abc import Callable, Iterator
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
    begin: dict[int, int]
    known: dict[int, State]


_steps: weakref.WeakKeyDictionary[Optimizer, deque[_Step]] = weakref.WeakKeyDictionary()
_stages: weakref.WeakKeyDictionary[GradScaler, deque[_Stage]] = weakref.WeakKeyDictionary()


def _forget_done(notes: deque[Any], last: str) -> None:
    """The server reports a failure before it says that the call is done."""
    while notes and all(_C.calls_done(of) >= call for of, call in getattr(notes[0], last).items()):
        notes.popleft()


def _is_counter(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_cpu and value.dim() == 0


def _devices(optimizer: Optimizer) -> set[int]:
    """Those of the first parameter of each group: asked for at every step."""
    firsts = (group["params"][0] for group in optimizer.param_groups if group["params"])
    return {first.device.index or 0 for first in firsts if _backend.is_ours(first)}


def _calls(devices: set[int]) -> dict[int, int]:
    return dict(_C.call_number(device) for device in devices)


def _settings(group: State) -> State:
    return {key: value for key, value in group.items() if key != "params"}


def _look(optimizer: Optimizer, devices: set[int]) -> _Step:
    state = {
        owner: {key: list(value) if isinstance(value, list) else value for key, value in of.items()}
        for owner, of in optimizer.state.items()
        if isinstance(of, dict)
    }
    groups = [_settings(group) for group in optimizer.param_groups]
    counters = [v for of in (*state.values(), *groups) for v in of.values() if _is_counter(v)]
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
    _forget_done(steps, "end")
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
        state.clear()
        state.update(before)
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
    """Whether this thread is inside its step()."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        args = frame.f_locals.get("args") if frame.f_code.co_name == "wrapper" else None
        if isinstance(args, tuple) and args and args[0] is optimizer:
            return True
        frame = frame.f_back
    return False


def _take_back_steps(session: int, since: int, thread: int) -> None:
    for optimizer, steps in list(_steps.items()):
        is_running = _is_running(optimizer)
        for step in [step for step in reversed(steps) if step.thread == thread]:
            has_ended = step.end is not step.begin
            is_late = step.end.get(session, 0) >= since if has_ended else is_running
            if is_late:
                steps.remove(step)
                _restore(optimizer, step)


def _take_back_stages(session: int, since: int, thread: int) -> None:
    for scaler, stages in list(_stages.items()):
        for stage in reversed(list(stages)):
            if stage.thread == thread and stage.begin.get(session, 0) >= since:
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
        if scaler._enabled and _C.is_initialized():
            stages = _stages.setdefault(scaler, deque())
            _forget_done(stages, "begin")
            calls = _calls(set(range(_C.device_count())))
            known = {of: dict(state) for of, state in scaler._per_optimizer_states.items()}
            stages.append(_Stage(_C.current_thread(), calls, known))
        return change(scaler, *args, **kwargs)

    return noted


def install() -> None:
    on_undo(register_optimizer_step_pre_hook(_before_step).remove)
    on_undo(register_optimizer_step_post_hook(_after_step).remove)
    for name in ("unscale_", "step", "update"):
        patch(GradScaler, name, _noting_stage(vars(GradScaler)[name]))
    _C.set_take_back(_take_back)
