"""Where PyTorch's Python branches on the device, it takes the branch of the server's device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from . import _backend
from ._device import get_device_properties
from ._patches import on_undo, patch

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


def install() -> None:
    _keep_decompositions()
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
