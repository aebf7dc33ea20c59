"""sentence-transformers: the device of a model that is made without one. Lines of 6.2.0."""

from __future__ import annotations

import functools
from typing import Any

import torch

from .choice import change_modules, instead_of_cpu, replace


def _choosing(get_device_name: Any) -> Any:
    @functools.wraps(get_device_name)
    def get() -> str:
        return str(instead_of_cpu(torch.device(get_device_name())))

    return get


def install() -> None:
    # util/environment.py:56, get_device_name: a fixed list of kinds, then the CPU.
    change_modules(
        {
            "sentence_transformers.util.environment": lambda module: replace(
                module, "get_device_name", _choosing
            )
        }
    )
