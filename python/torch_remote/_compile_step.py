"""`torch_remote.compile_step`: a function that trains, as one message."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from . import _C
from ._backend import is_ours, name

Result = TypeVar("Result")

_EAGER_CALLS = 3  # before the recording: they make gradients and the optimizer's state
_MOST_KINDS = 16  # of arguments, with a recording each


class _Recorded:
    """What was recorded for arguments of one kind."""

    def __init__(self) -> None:
        self.eager_calls = 0
        self.function: _C.Function | None = None
        self.shape: TreeSpec | None = None  # of the results
        self.written: set[int] = set()  # the arguments that the function changes, by their place


def _kind_of(value: Any) -> Hashable:
    if not isinstance(value, torch.Tensor):
        return type(value), value
    return value.dtype, value.device, value.shape, value.stride(), value.requires_grad


def _modes() -> Hashable:
    """What decides which calls a function makes, besides its arguments and torch's settings."""
    device = name()
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled(device),
        torch.get_autocast_dtype(device),
    )


def _alone(value: Any, is_written: bool) -> Any:
    """The value; a copy of a tensor that is a part of other memory: the next may be elsewhere."""
    if not isinstance(value, torch.Tensor) or value.untyped_storage().nbytes() == value.nbytes:
        return value
    if is_written:
        raise ValueError(
            "compile_step: the function changes an argument that is a part of a larger tensor; "
            "give it the whole tensor, or a copy"
        )
    return value.detach().clone()


def _is_same(value: Any, other: Any) -> bool:
    if value is other:
        return True
    return isinstance(value, int | float | str | tuple) and bool(value == other)


class _Settings:
    """Counts the changes of what a recorded step of an optimizer does not look at again: its state,
    which `load_state_dict()` replaces, and the values in its groups."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = weakref.ref(optimizer)
        self._seen: list[Any] = []
        self._changes = 0

    def changes(self) -> int:
        optimizer = self.optimizer()
        if optimizer is None:
            self._seen = []
            return self._changes
        values = [optimizer.state]
        for group in optimizer.param_groups:
            values += group.values()
        if len(values) != len(self._seen) or not all(map(_is_same, values, self._seen)):
            self._changes += 1
            self._seen = values
        return self._changes


class _CompiledStep:
    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._settings: list[_Settings] = []  # of optimizers whose steps the function makes
        self._recorded: dict[Hashable, _Recorded] = {}  # the last used last

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        return self if owner is None else functools.partial(self, owner)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _C.is_recording():
            return self._function(*args, **kwargs)
        leaves, shape = tree_flatten((args, kwargs))
        kind = (shape, *map(_kind_of, leaves), _modes(), self._changes())
        recorded = self._recorded.pop(kind, None) or _Recorded()
        self._recorded[kind] = recorded
        if len(self._recorded) > _MOST_KINDS:
            del self._recorded[next(iter(self._recorded))]
        if recorded.eager_calls < _EAGER_CALLS:
            recorded.eager_calls += 1
            with self._noting_optimizers():
                results = self._function(*args, **kwargs)
            kind_after = (*kind[:-1], self._changes())
            self._recorded[kind_after] = self._recorded.pop(kind)
            return results
        whole = [_alone(leaf, place in recorded.written) for place, leaf in enumerate(leaves)]
        results = None if recorded.function is None else recorded.function(whole)
        if results is None:
            self._record(recorded, whole, shape)
            for place in recorded.written:
                _alone(leaves[place], is_written=True)
            assert recorded.function is not None
            results = recorded.function(whole)
        if results is None:
            raise ValueError("compile_step: an argument is on another server than the calls")
        return tree_unflatten(results, recorded.shape)

    def _changes(self) -> Hashable:
        return tuple(settings.changes() for settings in self._settings)

    @contextmanager
    def _noting_optimizers(self) -> Iterator[None]:
        thread = threading.get_ident()

        def note(optimizer: Optimizer, *_: object) -> None:
            known = any(each.optimizer() is optimizer for each in self._settings)
            if threading.get_ident() == thread and not known:
                self._settings.append(_Settings(optimizer))

        hook = register_optimizer_step_pre_hook(note)
        try:
            yield
        finally:
            hook.remove()

    def _record(self, recorded: _Recorded, leaves: list[Any], shape: TreeSpec) -> None:
        here = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and not is_ours(leaf)]
        if here:
            raise ValueError(
                f"compile_step: an argument is a tensor on {here[0].device}; move the arguments "
                "to the remote device before the call, because a recording cannot send them"
            )
        if any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves):
            raise ValueError(
                "compile_step: an argument requires a gradient, which would be that of the "
                "recording; detach() it, or compute what it comes from inside the function"
            )
        versions = _versions(leaves)
        args, kwargs = tree_unflatten(leaves, shape)
        recording = _C.FunctionRecording(leaves, may_move=False, is_of_thread=True)
        try:
            results, recorded.shape = tree_flatten(self._function(*args, **kwargs))
            results = [_copied(result) for result in results]
            after = _versions(leaves)
            recorded.function = recording.finish(results)
        finally:
            recording.abandon()
        recorded.written = {place for place in versions if versions[place] != after[place]}
        if recorded.function is None:
            raise ValueError("compile_step: the function makes no call on a remote device")


def _versions(leaves: list[Any]) -> dict[int, int]:
    tensors = {place: leaf for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)}
    return {place: tensor._version for place, tensor in tensors.items()}


def _copied(value: Any) -> Any:
    """A copy of a tensor: the function may keep the tensor itself, or have it from elsewhere."""
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def compile_step(function: Callable[..., Result]) -> Callable[..., Result]:
    """Makes a function that trains with one message a call: forward, backward, optimizer.

    The first three calls run as they are. The next one is recorded: Python runs once more, and its
    calls on remote tensors are kept. From then on a call sends one message, which runs them on the
    tensors it is given. New sizes, or other values of arguments that are no tensors, begin anew::

        optimizer = torch.optim.AdamW(model.parameters(), capturable=True)

        @torch_remote.compile_step
        def step(x, goal):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), goal)
            loss.backward()
            optimizer.step()
            return loss

    Each call returns new tensors, without a history for autograd. What Python does besides is not
    repeated: prints, counters. Optimizers need `capturable=True` or `fused=True`. Another value in
    their `param_groups`, and `load_state_dict()`, begin anew: a learning rate that often changes
    is a tensor on the device, changed in place. Parameters, their gradients and `train()` or
    `eval()` stay those of the recording: change parameters in place, and call `zero_grad()` inside.
    What cannot be recorded, such as reading a value, raises what `torch_remote.Graph` raises.
    """
    return _CompiledStep(function)
