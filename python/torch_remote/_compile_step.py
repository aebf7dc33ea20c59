"""`torch_remote.compile_step`: a function that trains, as one message."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch
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


class _CompiledStep:
    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._recorded: dict[Hashable, _Recorded] = {}  # the last used last

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        return self if owner is None else functools.partial(self, owner)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _C.is_recording():
            return self._function(*args, **kwargs)
        leaves, shape = tree_flatten((args, kwargs))
        kind = (shape, *map(_kind_of, leaves), _modes())
        recorded = self._recorded.pop(kind, None) or _Recorded()
        self._recorded[kind] = recorded
        if len(self._recorded) > _MOST_KINDS:
            del self._recorded[next(iter(self._recorded))]
        if recorded.eager_calls < _EAGER_CALLS:
            recorded.eager_calls += 1
            return self._function(*args, **kwargs)
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
    repeated: prints, counters, a learning rate that is a number. Optimizers need `capturable=True`
    or `fused=True`. Parameters, their gradients and `train()` or `eval()` stay those of the
    recording: change parameters in place, and call `zero_grad()` inside. What cannot be recorded,
    such as reading a value, raises what `torch_remote.Graph` raises.
    """
    return _CompiledStep(function)
