"""What PyTorch predicts of a remote tensor while it traces is what the server's device does.

torch.compile and torch.export trace with fake tensors, which have sizes, strides and a device.
Some of PyTorch's predictions ask for the kind of the device: the strides of a convolution, the
sizes of what batch norm saves. Wrong strides are no mere detail: from them follows which copies
and which matrix products are in the graph.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch._prims_common import suggest_memory_format
from torch.utils._pytree import tree_leaves, tree_map

from . import _backend
from ._device import get_device_properties
from ._patches import patch

_CPU = torch.device("cpu")

aten = torch.ops.aten
_CONVOLUTIONS = (
    aten.convolution.default,
    aten.convolution_backward.default,
    aten._convolution.default,
    aten._convolution.deprecated,
)
# Operators whose prediction asks for the kind of device. They make new tensors.
_ASK_FOR_THE_KIND = frozenset(
    (
        *_CONVOLUTIONS,
        aten.native_layer_norm.default,
        aten.native_batch_norm.default,
        aten._native_batch_norm_legit.default,
        aten._native_batch_norm_legit.no_stats,
        aten._native_batch_norm_legit_functional.default,
        aten._native_batch_norm_legit_no_training.default,
        aten._batch_norm_with_update.default,
        aten._batch_norm_with_update_functional.default,
        aten._batch_norm_no_update.default,
    )
)


def _kind(device: torch.device) -> str:
    return get_device_properties(device).kind


def _remote_device(tensors: list[Any]) -> torch.device | None:
    """That of the first fake tensor on one of our devices."""
    name = _backend.name()
    devices = (tensor.fake_device for tensor in tensors)
    return next((device for device in devices if device.type == name), None)


@contextmanager
def _on(device: torch.device, tensors: list[Any]) -> Iterator[None]:
    """In the block these fake tensors say that they are on this device."""
    before = [tensor.fake_device for tensor in tensors]
    for tensor in tensors:
        tensor.fake_device = device
    try:
        yield
    finally:
        for tensor, old in zip(tensors, before, strict=True):
            tensor.fake_device = old


def _cudnn_format(func: Any, arguments: tuple[Any, ...]) -> torch.memory_format | None:
    """The memory format of what cuDNN's convolution makes; None: a contiguous one.

    PyTorch asks its own cuDNN for it, which this process may lack.
    """
    first = 1 if func is aten.convolution_backward.default else 0
    image, weight = arguments[first : first + 2]
    if torch.float64 in (image.dtype, weight.dtype):
        return None
    formats = {suggest_memory_format(tensor) for tensor in (image, weight)}
    wanted = {4: torch.channels_last, 5: torch.channels_last_3d}.get(image.dim())
    return wanted if wanted in formats else None


def _predict_as_on_servers(fake_mode: Any, fake_tensor: Any) -> None:
    predict = fake_mode._dispatch_impl

    def faked(mode: Any, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and not isinstance(value, fake_tensor):
            return mode.fake_tensor_converter.from_real_tensor(mode, value)
        return value

    def in_format(wanted: torch.memory_format, mode: Any, value: Any) -> Any:
        if not isinstance(value, fake_tensor) or value.dim() < 4:
            return value
        with mode:
            return value.to(memory_format=wanted)

    def made_on(device: torch.device, mode: Any, value: Any) -> Any:
        if not isinstance(value, fake_tensor):
            return value
        with mode:
            return torch.empty_strided(
                value.size(), value.stride(), dtype=value.dtype, device=device
            )

    @functools.wraps(predict)
    def predict_there(self: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func not in _ASK_FOR_THE_KIND:
            return predict(self, func, types, args, kwargs)
        if self.allow_non_fake_inputs:  # as PyTorch does next
            args, kwargs = tree_map(partial(faked, self), (args, kwargs))
        leaves = tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, fake_tensor)]
        device = _remote_device(tensors)
        if device is None:
            return predict(self, func, types, args, kwargs)
        if _kind(device) == "cpu":
            with _on(_CPU, tensors):
                made = predict(self, func, types, args, kwargs)
            return tree_map(partial(made_on, device, self), made)
        made = predict(self, func, types, args, kwargs)
        wanted = _cudnn_format(func, args) if func in _CONVOLUTIONS else None
        return made if wanted is None else tree_map(partial(in_format, wanted, self), made)

    patch(fake_mode, "_dispatch_impl", predict_there)


def _predict_hints(registrations: Any) -> None:
    """Functions of the Meta device, which get fake tensors, ask this one for a device's name."""
    hint = registrations.device_hint

    @functools.wraps(hint)
    def hint_of_server(tensor: Any) -> Any:
        device = getattr(tensor, "fake_device", None)
        if device is None or device.type != _backend.name():
            return hint(tensor)
        return _kind(device)

    patch(registrations, "device_hint", hint_of_server)


def install() -> None:
    import torch._meta_registrations as registrations
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    _predict_as_on_servers(FakeTensorMode, FakeTensor)
    _predict_hints(registrations)
