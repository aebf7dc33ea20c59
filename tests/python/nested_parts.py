"""Comparing strided nested tensors: sizes, strides and offsets, then component by component."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from helpers import DEVICE, assert_same


def apart(value: Any) -> Any:
    """The same with each strided nested tensor as its metadata and its components."""
    if isinstance(value, torch.Tensor) and value.is_nested and value.layout == torch.strided:
        nested = value.detach()
        metadata = (
            nested._nested_tensor_size(),
            nested._nested_tensor_strides(),
            nested._nested_tensor_storage_offsets(),
        )
        return ["nested", nested.is_contiguous(), *metadata, *nested.unbind()]
    if isinstance(value, torch.Tensor):
        return [value.stride(), value.detach()]
    if isinstance(value, list | tuple):
        return [apart(item) for item in value]
    return value


def assert_both_same(function: Callable[[str], Any]) -> None:
    """Runs the function for the remote device and for the CPU, seeded; compares bit for bit."""
    torch.manual_seed(7)
    remote = function(DEVICE)
    torch.manual_seed(7)
    assert_same(apart(remote), apart(function("cpu")))
