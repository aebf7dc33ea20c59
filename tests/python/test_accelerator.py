"""torch.accelerator, whose accelerator is our device. Memory figures have a file of their own."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator

import pytest
import torch
from helpers import assert_runs

import torch_remote

# Every public function is in one of these, or in a test below.
MEMORY = {
    "empty_host_cache",
    "get_memory_info",
    "max_memory_allocated",
    "max_memory_reserved",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
}
TESTED = {
    "Graph",
    "current_accelerator",
    "current_device_idx",
    "current_device_index",
    "current_stream",
    "device_count",
    "device_index",
    "empty_cache",
    "get_device_capability",
    "is_available",
    "set_device_idx",
    "set_device_index",
    "set_stream",
    "synchronize",
}


@pytest.fixture(autouse=True)
def same_device() -> Iterator[None]:
    yield
    torch.remote.set_device(0)


def test_every_public_function_is_known_here() -> None:
    assert set(torch.accelerator.__all__) <= MEMORY | TESTED


def test_our_device_is_the_accelerator() -> None:
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("remote")
    assert torch.accelerator.current_accelerator(check_available=True) == torch.device("remote")
    assert torch.accelerator.device_count() == torch.remote.device_count() == 1


def test_asking_starts_no_server() -> None:
    assert_runs(
        """
        import torch, torch_remote
        torch.accelerator.is_available(), torch.accelerator.device_count()
        torch.accelerator.current_accelerator(), torch.accelerator.current_device_index()
        torch.accelerator.get_device_capability(), torch.accelerator.synchronize()
        torch.accelerator.set_device_index(0), torch.accelerator.empty_cache()
        assert not torch.remote.is_initialized()
        """
    )


def test_the_current_device_is_set_and_restored() -> None:
    with torch_remote.connect("local") as machine:
        index = machine.devices[0].index
        for device in (index, torch.device("remote", index), f"remote:{index}"):
            torch.accelerator.set_device_index(device)
            assert (
                torch.accelerator.current_device_index() == index == torch.remote.current_device()
            )
            assert torch.ones(1, device="remote").device.index == index
            torch.accelerator.set_device_index(0)
        torch.accelerator.set_device_index(-1)  # nothing, as PyTorch says
        with torch.accelerator.device_index(index):
            assert torch.accelerator.current_device_index() == index
        with torch.accelerator.device_index(None):
            assert torch.accelerator.current_device_index() == 0
        assert torch.accelerator.current_device_index() == 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.accelerator.set_device_idx(index)
            assert torch.accelerator.current_device_idx() == index
        torch.accelerator.set_device_index(0)


@pytest.mark.parametrize("device", [9, "remote:9", torch.device("remote", 9)])
def test_an_index_that_does_not_exist_is_refused(device: object) -> None:
    with pytest.raises(RuntimeError, match=r"remote:9 does not exist; there (is|are) remote:0"):
        torch.accelerator.set_device_index(device)  # type: ignore[arg-type]
    assert torch.accelerator.current_device_index() == 0
    torch.ones(1, device="remote")  # before the first session there is nothing to wait for
    with pytest.raises(RuntimeError, match=r"remote:9 does not exist"):
        torch.accelerator.synchronize(9)
    with pytest.raises(ValueError):
        torch.accelerator.set_device_index("cpu")


def test_streams_and_synchronize() -> None:
    stream = torch.accelerator.current_stream()
    assert stream.device == torch.device("remote", 0)
    assert torch.accelerator.current_stream("remote:0") == stream
    torch.accelerator.set_stream(stream)
    for device in (None, 0, "remote:0", torch.device("remote", 0)):
        torch.accelerator.synchronize(device)
    torch.accelerator.empty_cache()


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_the_capability_has_the_dtypes_that_a_tensor_can_have() -> None:
    dtypes = torch.accelerator.get_device_capability()["supported_dtypes"]
    assert {torch.float32, torch.bfloat16, torch.int8, torch.bool, torch.complex64} <= dtypes
    assert torch.qint8 not in dtypes and torch.quint4x2 not in dtypes
    for dtype in dtypes - {torch.bits8, torch.bits16}:
        assert torch.empty(2, dtype=dtype, device="remote").dtype == dtype
    assert torch.accelerator.get_device_capability("remote:0")["supported_dtypes"] == dtypes


def test_the_device_module_is_found() -> None:
    for device in ("remote", torch.device("remote"), torch.device("remote", 0), None):
        assert torch.get_device_module(device) is torch.remote
    assert inspect.ismodule(torch.remote)


def test_code_for_any_accelerator_runs() -> None:
    device = torch.accelerator.current_accelerator()
    assert device is not None
    module = torch.get_device_module(device)
    module.manual_seed(1)
    x = torch.randn(3, device=device)
    torch.accelerator.synchronize()
    torch.manual_seed(1)
    assert torch.equal(x.cpu(), torch.randn(3))
