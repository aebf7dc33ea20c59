"""Where PyTorch's Python branches on the device, it takes the branch of the server's device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch

from . import _backend
from ._device import get_device_properties
from ._patches import change_module, on_undo, patch, patch_item
from ._random import get_rng_state, set_rng_state

_OURS = torch._C.DispatchKey.AutogradPrivateUse1


def _seen_by_server(device: torch.device | None) -> torch.device | None:
    """The device as PyTorch names it on a CPU server.

    A CUDA server's device is not renamed: for `cuda` PyTorch would ask CUDA in this process.
    """
    if device is None or device.type != _backend.name():
        return device
    return torch.device("cpu") if get_device_properties(device).kind == "cpu" else device


def _keep_decompositions() -> None:
    """Lets torch.compile and torch.export decompose these operators in Python, as on CPU and CUDA.

    Our kernels at AutogradPrivateUse1, which eager mode needs, would otherwise come first.
    """
    aten = torch.ops.aten
    for operator in (
        aten.dropout.default,
        aten.gru.input,
        aten.gru.data,
        aten.lstm.input,
        aten.lstm.data,
        aten.rnn_tanh.input,
        aten.rnn_tanh.data,
        aten.rnn_relu.input,
        aten.rnn_relu.data,
    ):
        decomposition = operator.py_kernels.get(torch._C.DispatchKey.Autograd)
        if decomposition is None:
            continue
        if operator in (aten.lstm.input, aten.lstm.data):
            decomposition = _unless_on_cpu(operator, decomposition)
        operator.py_impl(_OURS)(decomposition)
        on_undo(functools.partial(_remove_kernel, operator))


def _remove_kernel(operator: Any) -> None:
    operator.py_kernels.pop(_OURS)
    operator._dispatch_cache.clear()


def _unless_on_cpu(operator: Any, decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """Runs our own kernel for an LSTM on a CPU server, where it calls oneDNN's kernel.

    PyTorch's decomposition calls oneDNN's kernel only if the device is named `cpu`.
    """

    @functools.wraps(decomposition)
    def chosen(value: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if get_device_properties(value.device).kind == "cpu":
            return operator._op_dk(_OURS, value, *args, **kwargs)
        return decomposition(value, *args, **kwargs)

    return chosen


def _device_of(values: Iterable[Any]) -> torch.device | None:
    """That of the first remote tensor, or the first remote device, among arguments."""
    for value in values:
        device = value.device if isinstance(value, torch.Tensor) else value
        if isinstance(device, torch.device) and device.type == _backend.name():
            return device
    return None


def _save_state(default: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(default)
    def save(operator: Any, *args: Any, **kwargs: Any) -> Any:
        device = _device_of((*args, *kwargs.values()))
        if device is None:
            return default(operator, *args, **kwargs)
        return get_rng_state(device), operator(*args, **kwargs)

    return save


def _use_state(default: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(default)
    def use(state: torch.Tensor, operator: Any, *args: Any, **kwargs: Any) -> Any:
        device = _device_of((*args, *kwargs.values()))
        if device is None:
            return default(state, operator, *args, **kwargs)
        current = get_rng_state(device)
        set_rng_state(state, device)
        made = operator(*args, **kwargs)
        set_rng_state(current, device)
        return made

    return use


def _draw_again_in_checkpoints(prims: Any) -> None:
    """torch.compile's checkpoints draw the same random numbers in their second forward pass.

    PyTorch has a list of devices here.
    """
    key = torch._C.DispatchKey.BackendSelect
    for operator, make in (
        (prims.run_and_save_rng_state, _save_state),
        (prims.run_with_rng_state, _use_state),
    ):
        patch_item(operator.py_kernels, key, make(operator.py_kernels[key]))
        operator._dispatch_cache.clear()
        on_undo(operator._dispatch_cache.clear)


def install() -> None:
    _keep_decompositions()
    change_module("torch._prims.rng_prims", _draw_again_in_checkpoints)
    _avoid_fast_path_under_autocast()
    _choose_for_linear_cross_entropy()


# torch.jit.script compiles this function; it leaves out what `not is_scripting()` guards. It does
# not call the original, which torch.compile does not trace when another function has its name.
def _get_fastpath_enabled() -> bool:
    if not torch.jit.is_scripting():
        enabled: bool = torch.backends.mha._is_fastpath_enabled
        return enabled and not torch.is_autocast_enabled(_backend.name())
    return True


def _avoid_fast_path_under_autocast() -> None:
    """Transformer layers have a fast path that casts nothing. Under CUDA's autocast it is not used.

    PyTorch does not ask there for the autocast of other devices.
    """
    patch(torch.backends.mha, "get_fastpath_enabled", _get_fastpath_enabled)


def _choose_for_linear_cross_entropy() -> None:
    """Its accumulation in half precision and its chunk size depend on the device."""
    try:
        from torch.nn.modules.linear_cross_entropy_options import LinearCrossEntropyOptions
    except ImportError:  # before torch 2.13
        return
    adjust = LinearCrossEntropyOptions._adjust

    @functools.wraps(adjust)
    def adjusted(
        self: Any,
        num_batches: int,
        in_features: int,
        num_classes: int,
        dtype: torch.dtype,
        device: torch.device | None = None,
    ) -> Any:
        place = _seen_by_server(device)
        return adjust(self, num_batches, in_features, num_classes, dtype, place)

    patch(LinearCrossEntropyOptions, "_adjust", adjusted)
