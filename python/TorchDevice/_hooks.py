"""Which functions and types of torch are hooked. C++ does what they do instead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._device import _device_constructors

from . import _C
from ._rehash import rehashing

# These follow a tensor among their arguments when no device is named.
_CONVERTERS = {"tensor", "as_tensor", "asarray", "linspace", "logspace", "scalar_tensor", "normal"}
_LIKE = ("empty", "full", "ones", "rand", "randint", "randn", "zeros")
_NEW = ("empty", "empty_strided", "full", "ones", "tensor", "zeros")
_TENSOR_METHODS = {
    "to": "to",
    "cuda": "cuda",
    "cpu": "cpu",
    "pin_memory": "pin_memory",
    "is_pinned": "is_pinned",
    "numpy": "numpy",
    "type": "type",
    "record_stream": "record_stream",
}
# They draw numbers for a tensor, and may have a generator of another device.
_DRAWS = (
    "bernoulli", "binomial", "multinomial", "poisson", "rrelu", "_standard_gamma",
    "_sample_dirichlet",
)  # fmt: skip
_DRAWN_TENSORS = ("bernoulli", "multinomial")
_DRAWN_IN_PLACE = (
    "bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "normal_", "random_",
    "uniform_",
)  # fmt: skip
_GENERATOR = (
    "get_state", "set_state", "manual_seed", "seed", "initial_seed", "clone_state", "__setstate__",
)  # fmt: skip
_AUTOCAST = {
    "is_autocast_enabled": "autocast_flag",
    "set_autocast_enabled": "autocast_flag",
    "get_autocast_dtype": "autocast",
    "set_autocast_dtype": "autocast",
}
_KINDS = ("Float", "Double", "Half", "BFloat16", "Byte", "Char", "Short", "Int", "Long", "Bool")


def _api(function: Any) -> str:
    name = function.__name__
    return f"torch.{name.replace('fft_', 'fft.')}"


def _factories() -> Iterator[tuple[Any, str, str]]:
    builtin = type(torch.zeros)
    for function in _device_constructors():
        if type(function) is not builtin:  # nested_tensor calls the one below
            continue
        name = function.__name__
        follows = name in _CONVERTERS or name.startswith("sparse_") or "quantized" in name
        yield function, "converter" if follows else "factory", _api(function)
    yield torch.normal, "converter", "torch.normal"
    yield torch._C._nested.nested_tensor, "factory", "torch.nested.nested_tensor"


def _methods() -> Iterator[tuple[Any, str, str]]:
    yield from _factories()
    for name in _LIKE:
        function = getattr(torch, f"{name}_like")
        yield function, "follower", _api(function)
    base = torch._C.TensorBase
    for name in _NEW:
        yield getattr(base, f"new_{name}"), "follower", f"Tensor.new_{name}"
    for name, kind in _TENSOR_METHODS.items():
        yield getattr(base, name), kind, f"Tensor.{name}"
    for name in _DRAWS:
        yield getattr(torch, name), "draw", f"torch.{name}"
    for name in _DRAWN_TENSORS:
        yield getattr(base, name), "draw", f"Tensor.{name}"
    for name in _DRAWN_IN_PLACE:
        yield getattr(base, name), "draw_in_place", f"Tensor.{name}"
    yield torch._C._nn._parse_to, "parse_to", "Module.to"
    yield torch._C._is_autocast_available, "autocast", "torch._is_autocast_available"
    for name, kind in _AUTOCAST.items():
        yield getattr(torch, name), kind, f"torch.{name}"
    yield torch._VF._pack_padded_sequence, "pack", "torch._pack_padded_sequence"


def install() -> None:
    """Hooks everything. Doing it twice is the same as once."""
    methods = list(_methods())
    with rehashing(function for function, _, _ in methods):
        for function, kind, api in methods:
            _C.hook_method(function, kind, api)
    _C.hook_type(torch.device, "device")
    _C.hook_type(torch.Generator, "generator")
    for kind in (torch.Stream, torch.Event):
        _C.hook_type(kind, "stream")
    for kind in (torch._C.StorageBase, torch.UntypedStorage):
        _C.hook_type(kind, "storage")
    _C.hook_type(torch.Tensor, "tensor")
    for name in _KINDS:
        _C.hook_type(getattr(torch, f"{name}Tensor"), "legacy")
        _C.hook_type(getattr(torch.cuda, f"{name}Tensor"), "legacy_cuda")
        for module in (torch.sparse, torch.cuda.sparse):
            if hasattr(module, f"{name}Tensor"):
                _C.hook_type(getattr(module, f"{name}Tensor"), "sparse")
    _C.hook_instance_check(vars(type(torch.cuda.FloatTensor))["__instancecheck__"])
    with rehashing([torch._C._set_default_tensor_type]):
        _C.hook_default_type(torch._C._set_default_tensor_type)
    for name in _GENERATOR:
        _C.hook_generator(getattr(torch._C.Generator, name), name)
    _C.hook_data(vars(torch._C.TensorBase)["data"])
    for name in ("is_cuda", "is_mps", "device"):
        _C.hook_getter(vars(torch._C.TensorBase)[name], name)
    owners = {
        "generator": torch._C.Generator,
        "stream": torch.Stream,
        "event": torch.Event,
        "storage": torch._C.StorageBase,
    }
    for name, owner in owners.items():
        _C.hook_getter(vars(owner)["device"], f"{name}_device")


def remove() -> None:
    """Takes all hooks back."""
    functions = [function for function, _, _ in _methods()]
    with rehashing([*functions, torch._C._set_default_tensor_type]):
        _C.unhook()
