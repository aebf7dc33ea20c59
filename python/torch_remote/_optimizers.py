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
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

import torch
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from . import _C
from ._patches import leave_to_python, on_undo, patch

# By id(): a program's optimizer may have an __eq__ of its own.
_noted: dict[int, tuple[weakref.ref[Any], _C.Notes]] = {}


def _keep(owner: object, notes: _C.Notes) -> None:
    key = id(owner)
    _noted[key] = (weakref.ref(owner, lambda _: _noted.pop(key, None)), notes)


def _aborted(owner: object, notes: _C.Notes, least: int = 0) -> list[_C.Note]:
    """Steps that ended with an exception: PyTorch calls no hook after them.

    At least `least` steps of this thread run. Those of other threads are found if none of them runs
    a step of the owner.
    """
    if isinstance(owner, GradScaler):
        return []
    # Before the frames are looked at: a step that another thread begins meanwhile is not listed.
    unended = [note for note in notes.all() if not note.has_ended]
    depths = _depths(owner)
    thread = _C.current_thread()
    own = [note for note in unended if note.thread == thread]
    aborted = own[: max(len(own) - max([least, *depths.values()]), 0)]
    if not depths.keys() - {threading.get_ident()}:
        aborted += [note for note in unended if note.thread != thread]
    return aborted


def forget_done() -> None:
    """Frees state that the program has replaced since the last step, and notes keep alive.

    Functions that wait for a device call it, and those that ask for its memory.
    """
    for reference, notes in list(_noted.values()):
        if notes.unended > 0 and (owner := reference()) is not None:
            _end_aborted(owner, notes)
        notes.forget_done()


def _end_aborted(owner: object, notes: _C.Notes, least: int = 0) -> None:
    for note in _aborted(owner, notes, least):
        notes.end(note)


def _depths(owner: object) -> dict[int, int]:
    """How many step() of it are running, one inside the other: that of a subclass calls its base's.

    Of each thread that runs one, by threading.get_ident(). Looks at all threads: autograd's worker
    may raise the failure of the thread that called it.
    """
    depths = {}
    for ident, top in sys._current_frames().items():
        depth = 0
        frame: FrameType | None = top
        while frame is not None:
            args = frame.f_locals.get("args") if frame.f_code.co_name == "wrapper" else None
            depth += isinstance(args, tuple) and bool(args) and args[0] is owner
            frame = frame.f_back
        if depth > 0:
            depths[ident] = depth
    return depths


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
    """Nothing that one optimizer or tensor does keeps the others from being restored."""
    objects = gc.get_objects()
    groups: list[Any] = []  # their parameters are not in `objects` after gc.freeze()
    errors: list[tuple[type, Exception]] = []
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        for reference, notes in list(_noted.values()):
            if (owner := reference()) is not None:
                found = _attempt(_add_groups, owner, groups)
                found += _restore_late(owner, notes, session, since)
                errors += [(type(owner), error) for error in found]
        _C.drop_missing_gradients(session, since, objects, groups)
    for kind, error in errors[:1]:  # at the end, because a warning may be made an error
        text = f"{kind.__name__} is not wholly restored after a failed call: {error}"
        warnings.warn(text, stacklevel=2)


def _add_groups(owner: object, groups: list[Any]) -> None:
    groups.extend(getattr(owner, "param_groups", ()))


def _restore_late(owner: object, notes: _C.Notes, session: int, since: int) -> list[Exception]:
    thread = _C.current_thread()
    own = [note for note in reversed(notes.all()) if note.thread == thread]
    aborted = _aborted(owner, notes) if own else []
    errors: list[Exception] = []
    for note in own:
        is_late = not note.has_ended or note.ended_since(session, since)
        if is_late and note not in aborted:
            errors += _attempt(_restore, note.found, owner, errors)
            notes.remove(note)
    return errors


def _restore(found: Any, owner: Any, errors: list[Exception]) -> None:
    restore = _restore_optimizer if isinstance(found, _C.FoundState) else _restore_scaler
    errors.extend(restore(found, owner))


def _attempt(action: Callable[..., object], *args: Any) -> list[Exception]:
    try:
        action(*args)
    except Exception as error:
        return [error]
    return []


# --- optimizers


def _restore_optimizer(found: _C.FoundState, optimizer: Any) -> Iterator[Exception]:
    """Its state and groups. Of tensors on the CPU without dimensions, counters, also the values."""
    if found.error is not None:
        yield found.error
    if found.error is not None or optimizer.state is not found.state:
        return
    known = set(map(id, found.owners))
    for owner in [owner for owner in found.state if id(owner) not in known]:
        yield from _attempt(found.state.pop, owner)
    for owner, state in zip(found.owners, found.states(), strict=False):
        yield from _attempt(_restore_one, found.state, owner, state)
    yield from _attempt(found.restore_counters)
    yield from _attempt(_restore_groups, found, optimizer)


def _restore_groups(found: _C.FoundState, optimizer: Optimizer) -> None:
    """Only what the step has changed in them."""
    befores = found.groups()
    afters = found.groups_after() or [{} for _ in befores]
    for group, before, after in zip(optimizer.param_groups, befores, afters, strict=False):
        changed = {k: v for k, v in before.items() if k != "params" and after.get(k) is not v}
        group.update(changed)


def _restore_one(states: Any, owner: Any, before: Any) -> None:
    state = states.get(owner)
    if isinstance(state, dict) and isinstance(before, dict):
        state.clear()
        state.update(before)
    else:
        states[owner] = before


def _before_step(optimizer: Optimizer, *_: Any) -> None:
    if torch.compiler.is_compiling():  # first: Dynamo cannot trace the rest
        return
    _C.check_calls_before_step(optimizer)
    known = _noted.get(id(optimizer))
    notes = _C.Notes() if known is None else known[1]
    try:
        unended = notes.begin(optimizer)
    except Exception:  # the step is made all the same
        return
    if known is None and unended > 0:
        _keep(optimizer, notes)
    if unended > 1:
        _end_aborted(optimizer, notes, least=1)


def _after_step(optimizer: Optimizer, *_: Any) -> None:
    if torch.compiler.is_compiling() or (known := _noted.get(id(optimizer))) is None:
        return
    known[1].end_last(optimizer)


# --- GradScaler


def _restore_scaler(known: dict[int, Any], scaler: Any) -> list[Exception]:
    """`known` is what it knew of its optimizers."""
    scaler._per_optimizer_states.clear()
    return _attempt(scaler._per_optimizer_states.update, known)


def _all_devices() -> list[int]:
    return [index for machine in _C.machine_ids() for index in _C.machine_summary(machine)[1]]


def _noted_change(change: Callable[..., Any]) -> Callable[..., Any]:
    """`change` is a method of GradScaler that changes what it knows of its optimizers."""

    @functools.wraps(change)
    def noted(scaler: GradScaler, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # first: Dynamo cannot trace the rest
            return change(scaler, *args, **kwargs)
        if not scaler._enabled or not _C.is_initialized() or _C.is_in_bad_fork():
            return change(scaler, *args, **kwargs)
        if id(scaler) not in _noted:
            _keep(scaler, _C.Notes())
        notes = _noted[id(scaler)][1]
        known = {of: dict(state) for of, state in scaler._per_optimizer_states.items()}
        note = _C.Note(_all_devices(), known)
        notes.add(note)
        try:
            return change(scaler, *args, **kwargs)
        finally:
            notes.end(note)

    return noted


def install() -> None:
    # PyTorch breaks the graph in every step() of its optimizers. So if torch.compile leaves what
    # calls the hooks to Python, a compiled step() has a note, and no graph is broken for it.
    for each in Optimizer.profile_hook_step.__code__.co_consts:
        if isinstance(each, CodeType):
            leave_to_python(each)
    for hook in (_before_step, _after_step):
        leave_to_python(hook, with_callees=True)
    on_undo(register_optimizer_step_pre_hook(_before_step).remove)
    on_undo(register_optimizer_step_post_hook(_after_step).remove)
    for name in ("unscale_", "step", "update"):
        patch(GradScaler, name, _noted_change(vars(GradScaler)[name]))
    _C.set_take_back(_take_back)
