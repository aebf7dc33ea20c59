"""Sends the downloads of `torch.save` and of `Module.to("cpu")` together.

Each is added to the thread's plan before it is made: Note [Downloads that go together] in
client/call/prefetch.h.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import serialization

from . import _C, _progress
from ._backend import is_ours, name
from ._patches import patch


@contextmanager
def _plan() -> Iterator[None]:
    """A thread has one plan; inner ones join it."""
    begun = _C.begin_downloads()
    try:
        yield
    finally:
        if begun:
            _C.end_downloads()


def _planning(save: Callable[..., Any]) -> Callable[..., Any]:
    """For the functions of `torch.save`: they ask where each storage is before they write any."""

    @functools.wraps(save)
    def planned(*args: Any, **kwargs: Any) -> Any:
        with _plan(), _progress.showing(is_upload=False):
            return save(*args, **kwargs)

    return planned


def _noting(location_tag: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(location_tag)
    def noted(storage: Any) -> Any:
        if isinstance(storage, torch.UntypedStorage) and storage.device.type == name():
            _C.plan_download(storage)
            _progress.add_storage(storage)
        return location_tag(storage)

    return noted


def _tensors_of(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    """In the order of `Module._apply`."""
    for child in module.children():
        yield from _tensors_of(child)
    for parameter in module._parameters.values():
        if type(parameter) is torch.nn.Parameter:
            yield parameter
            if parameter.grad is not None:
                yield parameter.grad
    for buffer in module._buffers.values():
        if type(buffer) is torch.Tensor:
            yield buffer


def _is_for_cpu(args: Any, kwargs: Any) -> bool:
    """Whether `Module.to(*args, **kwargs)` moves to the CPU and waits."""
    try:
        device, _, non_blocking, _ = torch._C._nn._parse_to(*args, **kwargs)
    except (TypeError, RuntimeError, ValueError):
        return False
    return device is not None and device.type == "cpu" and not non_blocking


def _moving(move: Callable[..., Any], is_for_cpu: Callable[[Any, Any], bool]) -> Callable[..., Any]:
    """For `Module.to` and `Module.cpu`, which move the tensors of a module one by one.

    There is no plan for `half()` and other moves, which free tensors as they go: a plan keeps them.
    """

    @functools.wraps(move)
    def planned(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # first: Dynamo cannot trace the rest
            return move(self, *args, **kwargs)
        if not (_C.is_initialized() and is_for_cpu(args, kwargs) and _C.begin_downloads()):
            return move(self, *args, **kwargs)
        try:
            for tensor in filter(is_ours, _tensors_of(self)):
                _C.plan_download(tensor)
            return move(self, *args, **kwargs)
        finally:
            _C.end_downloads()

    return planned


def install() -> None:
    """Patches the functions that save objects and move modules."""
    patch(serialization, "_save", _planning(serialization._save))
    patch(serialization, "_legacy_save", _planning(serialization._legacy_save))
    patch(serialization, "location_tag", _noting(serialization.location_tag))
    patch(torch.nn.Module, "to", _moving(torch.nn.Module.to, _is_for_cpu))
    patch(torch.nn.Module, "cpu", _moving(torch.nn.Module.cpu, lambda *_: True))
