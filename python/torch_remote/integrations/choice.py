"""When a library uses our device without being told, and the tools with which its files say so.

The rule: where a library looks for an accelerator and would take the CPU because it finds none, it
takes our device, if this process has imported torch_remote (or torch_modal) and there is no local
GPU. A local GPU, and a device that the program names, come first. Under TorchDevice a local GPU is
our device too, if that is the one that `cuda` is redirected to.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

import torch

from .. import _device
from .._backend import local_gpus, name
from .._patches import change_module, on_undo, patch


def is_chosen() -> bool:
    """Whether libraries that look for an accelerator take our device."""
    accelerator = torch.accelerator.current_accelerator()
    is_ours = accelerator is not None and accelerator.type == name()
    return is_ours and (local_gpus() == 0 or is_redirected())


def is_redirected() -> bool:
    """Whether TorchDevice redirects `cuda` to our device, as `torch-remote run` has it do."""
    redirect = sys.modules.get("TorchDevice._state")
    return redirect is not None and redirect.is_enabled() and redirect.uses_remote()


def instead_of_cpu(found: torch.device) -> torch.device:
    """Our device for a library that found nothing better than the CPU; else what it found."""
    return torch.device(name()) if found.type == "cpu" and is_chosen() else found


class _Torch(ModuleType):
    """The module torch, in which `torch.cuda` is our device module if our device is chosen."""

    def __getattr__(self, attribute: str) -> Any:
        if attribute == "cuda" and is_chosen():
            return _device
        return getattr(torch, attribute)


our_torch = _Torch("torch")


def use_our_cuda(module: Any) -> None:
    """Makes `torch.cuda` in the functions of a module our device module.

    For modules that call `torch.cuda` as the last of several device modules, and do not write
    "cuda" into a device or a string.
    """
    patch(module, "torch", our_torch)


def replace(module: Any, function: str, change: Callable[[Any], Any]) -> None:
    """Replaces a function by `change(function)`, also where other modules have imported it."""
    original = getattr(module, function)
    changed = change(original)
    _exchange(function, original, changed)
    # The undo searches all modules again: those imported meanwhile have the changed function too.
    on_undo(partial(_exchange, function, changed, original))


def _exchange(attribute: str, old: Any, new: Any) -> None:
    for module in list(sys.modules.values()):
        # vars(): getattr() on a module that loads its parts lazily would load them.
        if isinstance(module, ModuleType) and vars(module).get(attribute) is old:
            setattr(module, attribute, new)


def add_name(function: FunctionType, names: tuple[str, ...]) -> None:
    """Adds our device to a tuple of device names that is written inside a function.

    It is a constant of the compiled function, which nothing else can change.
    """
    code = function.__code__
    if names not in code.co_consts:
        raise AttributeError(f"{function.__qualname__} has no tuple {names}")
    constants = tuple((*each, name()) if each == names else each for each in code.co_consts)
    function.__code__ = code.replace(co_consts=constants)
    on_undo(partial(setattr, function, "__code__", code))


def change_modules(changes: dict[str, Callable[[Any], None]]) -> None:
    """Changes each of these modules once it is imported."""
    for module, change in changes.items():
        change_module(module, partial(_change_if_known, change))


def _change_if_known(change: Callable[[Any], None], module: Any) -> None:
    """Warns if another version of the library lacks what is changed; its import must not fail."""
    try:
        change(module)
    except AttributeError as error:
        library = module.__name__.split(".")[0]
        warnings.warn(
            f"torch_remote does not know this version of {library} ({error}): it may not find the "
            f"device {name()}; docs/libraries.md has the versions that were tried",
            stacklevel=2,
        )
