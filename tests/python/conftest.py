"""What all Python tests share. The backend is named once, before any test file runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import torch_remote
from torch_remote import _C


@pytest.fixture
def sync_count() -> Callable[[Callable[[], object]], int]:
    """Runs a function and returns how often it waited for the server."""

    def count(function: Callable[[], object]) -> int:
        with torch_remote.count() as counted:
            function()
        return counted.syncs

    return count


# torch.export replaces the default of these by TF32, which means the same.
REPLACED_BY_TORCH = ("cuda_conv_precision", "cuda_rnn_precision")


def settings() -> dict[str, object]:
    """What a test could leave behind that changes results of later tests."""
    return {
        **{name: value for name, value in _C.context().items() if name not in REPLACED_BY_TORCH},
        "default device": torch.get_default_device(),
        "gradients": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": [torch.is_autocast_enabled(kind) for kind in ("cpu", "remote")],
        "autocast cache": torch.is_autocast_cache_enabled(),
        "anomaly mode": torch.is_anomaly_enabled(),
    }


@pytest.fixture(autouse=True)
def same_start() -> Iterator[None]:
    """Every test starts with the same seed, and leaves the settings of torch as they were."""
    torch.manual_seed(0)
    before, dtype = settings(), torch.get_default_dtype()
    yield
    torch.set_printoptions(profile="default")
    torch_remote.get_device_registry().clear()
    after = settings()
    torch.set_default_dtype(dtype)
    assert not {name: (before[name], after[name]) for name in before if before[name] != after[name]}


@pytest.fixture(params=["cpu", "remote"])
def used(request: pytest.FixtureRequest) -> Iterator[str]:
    """TorchDevice is on: the device in use, for each target."""
    from redirecting import redirected  # only tests of the redirect import TorchDevice

    with redirected(request.param) as device:
        yield device


@pytest.fixture
def remote() -> Iterator[str]:
    """TorchDevice is on, with the embedded remote device."""
    from redirecting import redirected

    with redirected("remote") as device:
        yield device
