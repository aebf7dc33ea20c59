"""What all Python tests share. The backend is named once, before any test file runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import torch_remote


@pytest.fixture
def sync_count() -> Callable[[Callable[[], object]], int]:
    """Runs a function and returns how often it waited for the server."""

    def count(function: Callable[[], object]) -> int:
        with torch_remote.count() as counted:
            function()
        return counted.syncs

    return count


@pytest.fixture(autouse=True)
def same_start() -> Iterator[None]:
    """Every test starts with the same seed and restores global settings."""
    torch.manual_seed(0)
    dtype = torch.get_default_dtype()
    yield
    torch.set_default_dtype(dtype)
    torch.set_printoptions(profile="default")
    torch_remote.get_device_registry().clear()
