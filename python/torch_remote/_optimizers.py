"""A step of an optimizer that was skipped on the server is taken back on this side too.

An error comes when a value is read. By then the program may have made steps that locally it would not have come to: the
server has skipped their updates, but the optimizer has counted them, and may have made its state out of what failed. So
what each step finds is noted, and when the user is told of a failure, those steps since that were skipped are undone:
counters have their values again, new state goes, and so do gradients that are nothing but the error (docs/errors.md).

Notes hold no tensor of the optimizer's but its counters on the CPU.
"""

from __future__ import annotations

import weakref
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from . import _C, _backend

_MOST_STEPS = 256
_POISONED, _SKIPPED = 1, 2  # wire::Taint


@dataclass(eq=False)
class _Form:
    """What an optimizer's state looks like. Made anew when it changes: at the first step, by load_state_dict()."""

    mark: tuple[int, ...]
    devices: list[int]
    keys: list[tuple[str, ...] | None]  # of each parameter's state
    counters: list[Tensor]  # on the CPU, in that order
    numbers: list[tuple[int, str]]  # of which parameter, under which key


@dataclass(eq=False)
class _Step:
    optimizer: weakref.ref[Optimizer]
    calls: dict[int, int]  # the last call of each session before it
    form: _Form
    counters: Tensor | None
    numbers: list[Any]


_forms: weakref.WeakKeyDictionary[Optimizer, _Form] = weakref.WeakKeyDictionary()
_steps: deque[_Step] = deque(maxlen=_MOST_STEPS)


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _mark(optimizer: Optimizer) -> tuple[int, ...]:
    """Another one when the form may be another."""
    state = optimizer.state
    first = next(iter(state.values()), None)
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    return id(state), len(state), id(first), len(first) if isinstance(first, dict) else 0, *sizes


def _is_counter(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_cpu and value.dim() == 0


def _form_of(optimizer: Optimizer) -> _Form:
    mark = _mark(optimizer)
    form = _forms.get(optimizer)
    if form is not None and form.mark == mark:
        return form
    parameters = _parameters(optimizer)
    form = _Form(
        mark, sorted({p.device.index for p in parameters if _backend.is_ours(p)}), [], [], []
    )
    for i, parameter in enumerate(parameters):
        state = optimizer.state.get(parameter)
        form.keys.append(None if state is None else tuple(state) if isinstance(state, dict) else ())
        for key, value in state.items() if isinstance(state, dict) else ():
            if _is_counter(value):
                form.counters.append(value)
            elif isinstance(value, int | float):
                form.numbers.append((i, key))
    _forms[optimizer] = form
    return form


def _note_step(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    form = _form_of(optimizer)
    if not form.devices:
        return
    calls = dict(_C.call_number(device) for device in form.devices)
    counters = torch.stack(form.counters) if form.counters else None
    numbers = []
    if form.numbers:
        parameters = _parameters(optimizer)
        numbers = [optimizer.state[parameters[i]][key] for i, key in form.numbers]
    _steps.append(_Step(weakref.ref(optimizer), calls, form, counters, numbers))


def _restore(optimizer: Optimizer, step: _Step) -> None:
    """The state as the step found it, but for tensors on the device: the server puts those back."""
    parameters = _parameters(optimizer)
    for parameter, keys in zip(parameters, step.form.keys, strict=False):
        if keys is None:
            optimizer.state.pop(parameter, None)
            continue
        state = optimizer.state.get(parameter)
        for key in [key for key in state if key not in keys] if isinstance(state, dict) else ():
            del state[key]
    if step.counters is not None:
        for counter, value in zip(step.form.counters, step.counters, strict=True):
            counter.copy_(value)
    for (i, key), value in zip(step.form.numbers, step.numbers, strict=True):
        optimizer.state[parameters[i]][key] = value


def _undo_steps(session: int, cause: int) -> bool:
    """True: there were some, and none that went well."""
    since = [step for step in list(_steps) if step.calls.get(session, -1) >= cause]
    was_undone = went_well = False
    for optimizer in {step.optimizer() for step in since} - {None}:
        assert optimizer is not None
        taints = _C.taints(session, cause, _parameters(optimizer))
        skipped = [taint - _SKIPPED for taint in taints if taint >= _SKIPPED]
        own = [step for step in since if step.optimizer() is optimizer]
        bad = [step for step in own if skipped and _ends_behind(step, own, session, min(skipped))]
        went_well |= len(bad) < len(own)
        if bad:
            was_undone = True
            _restore(optimizer, bad[0])
            for step in bad:
                with suppress(ValueError):  # another thread's step may have pushed it out
                    _steps.remove(step)
    return was_undone and not went_well


def _ends_behind(step: _Step, own: list[_Step], session: int, call: int) -> bool:
    """Whether the step's calls go on until `call` or further: the next step tells where they end."""
    following = own[own.index(step) + 1 :]
    return not following or following[0].calls[session] >= call


def _drop_gradients(session: int, cause: int) -> None:
    """Of the optimizers that have made a step: gradients in the place of which there is the failure."""
    optimizers = [optimizer for ref in _forms.keyrefs() if (optimizer := ref()) is not None]
    with_gradient = [
        parameter
        for optimizer in optimizers
        for parameter in _parameters(optimizer)
        if parameter.grad is not None and _backend.is_ours(parameter.grad)
    ]
    gradients = [parameter.grad for parameter in with_gradient if parameter.grad is not None]
    taints = _C.taints(session, cause, gradients) if gradients else []
    for parameter, taint in zip(with_gradient, taints, strict=True):
        if taint == _POISONED:
            parameter.grad = None


def _undo(session: int, cause: int) -> bool:
    with torch.no_grad():
        undoes = _undo_steps(session, cause)
        _drop_gradients(session, cause)
    return undoes


def install() -> None:
    register_optimizer_step_pre_hook(_note_step)
    _C.set_undo(_undo)
