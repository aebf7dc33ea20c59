"""A step of an optimizer that was skipped on the server is taken back on this side too.

An error comes when a value is read. By then the program may have made steps that locally it would not have come to: the
server has skipped their updates, but the optimizer has counted them, and may have made its state out of what failed. So
what each step finds is noted, and when the user is told of a failure, those steps since that were skipped are undone:
counters have their values again, new state goes, and so do gradients that are nothing but the error (docs/errors.md).

Notes hold values of counters on the CPU, and no tensor of the optimizer's.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from . import _C, _backend

_MOST_STEPS = 64  # of each optimizer
_POISONED, _SKIPPED = 1, 2  # wire::Taint
_STACKED = object()  # in the place of a tensor's value


@dataclass(eq=False)
class _Form:
    """What an optimizer's state looks like. Made anew when it changes: at the first step, by load_state_dict()."""

    mark: tuple[int, ...]
    devices: list[int]
    keys: list[tuple[Any, ...] | None]  # of each parameter's state
    counts: list[
        tuple[int, Any]
    ]  # numbers and CPU tensors without dimensions: which parameter's, under which key


@dataclass(eq=False)
class _Step:
    calls: dict[int, int]  # the last call of each session before it
    form: _Form
    counts: list[Any]  # the values of form.counts; None: gone
    stacked: Tensor | None


@dataclass(eq=False)
class _Notes:
    form: _Form
    steps: deque[_Step]


_notes: weakref.WeakKeyDictionary[Optimizer, _Notes] = weakref.WeakKeyDictionary()


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _state(optimizer: Optimizer, parameter: Tensor) -> dict[Any, Any] | None:
    """Nothing: there is none, or one like no other's."""
    state = optimizer.state.get(parameter)
    return state if isinstance(state, dict) else None


def _mark(optimizer: Optimizer) -> tuple[int, ...]:
    """Another one when the form may be another."""
    state = optimizer.state
    first = next(iter(state.values()), None)
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    return id(state), len(state), id(first), len(first) if isinstance(first, dict) else 0, *sizes


def _is_count(value: object) -> bool:
    if isinstance(value, Tensor):
        return bool(value.is_cpu and value.dim() == 0)
    return isinstance(value, int | float)


def _make_form(optimizer: Optimizer, mark: tuple[int, ...]) -> _Form:
    parameters = _parameters(optimizer)
    devices = sorted({p.device.index for p in parameters if _backend.is_ours(p)})
    form = _Form(mark, devices, [], [])
    for i, parameter in enumerate(parameters):
        state = _state(optimizer, parameter)
        form.keys.append(None if optimizer.state.get(parameter) is None else tuple(state or ()))
        form.counts += [(i, key) for key, value in (state or {}).items() if _is_count(value)]
    return form


def _notes_of(optimizer: Optimizer) -> _Notes:
    mark = _mark(optimizer)
    notes = _notes.get(optimizer)
    if notes is None:
        notes = _Notes(_make_form(optimizer, mark), deque(maxlen=_MOST_STEPS))
        _notes[optimizer] = notes
    elif notes.form.mark != mark:
        notes.form = _make_form(optimizer, mark)
    return notes


def _note(optimizer: Optimizer) -> None:
    notes = _notes_of(optimizer)
    form = notes.form
    if not form.devices:
        return
    calls = dict(_C.call_number(device) for device in form.devices)
    if notes.steps and notes.steps[-1].calls == calls:
        return  # the step() of a subclass, in which it calls that of its base
    counts, tensors = [], []
    if form.counts:
        parameters = _parameters(optimizer)
        for i, key in form.counts:
            value = (_state(optimizer, parameters[i]) or {}).get(key)
            counts.append(_STACKED if isinstance(value, Tensor) else value)
            if isinstance(value, Tensor):
                tensors.append(value)
    stacked = torch.stack(tensors) if tensors else None
    notes.steps.append(_Step(calls, form, counts, stacked))


def _before_step(
    optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """A closure is the forward and the backward: the step begins behind it."""
    _note(optimizer)
    if len(args) > 1 and callable(args[1]):
        return (args[0], _noting(optimizer, args[1]), *args[2:]), kwargs
    if callable(kwargs.get("closure")):
        return args, kwargs | {"closure": _noting(optimizer, kwargs["closure"])}
    return None


def _noting(optimizer: Optimizer, closure: Callable[[], Any]) -> Callable[[], Any]:
    def run() -> Any:
        result = closure()
        _note(optimizer)
        return result

    return run


def _restore(optimizer: Optimizer, step: _Step) -> None:
    """The state as the step found it, but for tensors on the device: the server puts those back."""
    parameters = _parameters(optimizer)
    for parameter, keys in zip(parameters, step.form.keys, strict=False):
        if keys is None:
            optimizer.state.pop(parameter, None)
            continue
        state = _state(optimizer, parameter) or {}
        for key in [key for key in state if key not in keys]:
            del state[key]
    tensors = iter(step.stacked if step.stacked is not None else ())
    for (i, key), value in zip(step.form.counts, step.counts, strict=True):
        state = _state(optimizer, parameters[i]) or {}
        noted = next(tensors) if value is _STACKED else value
        if isinstance(state.get(key), Tensor) and isinstance(noted, Tensor):
            state[key].copy_(noted)
        elif key in state and noted is not None:
            state[key] = noted


def _skipped_steps(steps: list[_Step], session: int, cause: int, first: int) -> list[_Step]:
    """Those since the cause whose calls go on until the first that was skipped, or further."""
    since = [step for step in steps if step.calls.get(session, -1) >= cause]
    ends = [step.calls[session] for step in since[1:]]
    return [step for step, end in zip(since, [*ends, first], strict=True) if end >= first]


def _undo_steps(optimizer: Optimizer, session: int, cause: int, taints: list[int]) -> bool | None:
    """Whether its steps since the cause were all skipped, and are undone; nothing: it has made none."""
    notes = _notes[optimizer]
    steps = list(notes.steps)
    since = [step for step in steps if step.calls.get(session, -1) >= cause]
    if not since:
        return None
    skipped = [taint - _SKIPPED for taint in taints if taint >= _SKIPPED]
    if not skipped or (len(steps) == _MOST_STEPS and since[0] is steps[0]):
        return False  # they went well, or the notes do not go back far enough
    bad = _skipped_steps(steps, session, cause, min(skipped))
    if bad:
        _restore(optimizer, bad[0])
        notes.steps = deque((step for step in steps if step not in bad), maxlen=_MOST_STEPS)
    return len(bad) == len(since)


def _is_asked_about(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.layout == torch.strided and _backend.is_ours(tensor)


def _undo(session: int, cause: int) -> bool:
    """True: steps were made since the failure, and none went well: locally nothing since would have been done."""
    optimizers = [optimizer for ref in _notes.keyrefs() if (optimizer := ref()) is not None]
    owners = [(o, p) for o in optimizers for p in _parameters(o) if _is_asked_about(p)]
    with_gradient = [(o, p) for o, p in owners if _is_asked_about(p.grad)]
    asked = [p for _, p in owners] + [p.grad for _, p in with_gradient if p.grad is not None]
    if not asked:
        return False
    taints = _C.taints(session, cause, asked)
    with torch.no_grad():
        for (_, parameter), taint in zip(with_gradient, taints[len(owners) :], strict=True):
            if taint == _POISONED:
                parameter.grad = None
        by_owner: dict[Optimizer, list[int]] = {optimizer: [] for optimizer in optimizers}
        for (optimizer, _), taint in zip(owners, taints, strict=False):
            by_owner[optimizer].append(taint)
        told = [_undo_steps(o, session, cause, found) for o, found in by_owner.items()]
    made = [is_undone for is_undone in told if is_undone is not None]
    return bool(made) and all(made)


def install() -> None:
    register_optimizer_step_pre_hook(_before_step)
    _C.set_undo(_undo)
