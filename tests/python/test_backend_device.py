"""`create_modal_device()` and its kin: devices of machines that are launched at first use."""

from __future__ import annotations

import copy
import pickle
from importlib.util import find_spec

import pytest
import torch
from helpers import assert_runs

import torch_remote
from torch_remote import (
    BackendDevice,
    BackendProvider,
    GPUType,
    create_device,
    create_modal_device,
    get_device_registry,
)

pytestmark = pytest.mark.slow

GPUS = ["T4", "L4", "A10G", "A100-40GB", "A100-80GB", "L40S", "H100", "H200", "B200"]


def test_the_gpu_types_have_the_names_of_modal() -> None:
    assert [each.value for each in GPUType] == GPUS
    assert [each.name for each in GPUType] == [each.replace("-", "_") for each in GPUS]


@pytest.mark.parametrize("gpu", [*GPUS, GPUType.H100])
def test_a_device_is_made_for_every_type_and_launches_nothing(gpu: str | GPUType) -> None:
    before = torch_remote.machines()
    device = create_modal_device(gpu)
    assert device.gpu_type == GPUType(gpu)
    assert device.modal_gpu_spec == device.gpu_type.value
    assert device.device_name == f"Modal {device.gpu_type.value}"
    assert device.provider is BackendProvider.MODAL
    assert torch_remote.machines() == before


def test_a_device_is_a_string_that_torch_parses() -> None:
    device = create_modal_device("A100-40GB", timeout=60)
    assert isinstance(device, str) and isinstance(device, BackendDevice)
    assert str(device) == f"remote:{device.index}" and device.index > 0
    assert torch.device(device) == device.device() == device.to_torch_device()
    assert device.to_torch_device(0) == torch.device("remote:0")
    assert device.config == {"timeout": 60}
    name, _, digits = device.device_id.rpartition("-")
    assert name == "modal-a10040gb" and len(digits) == 8 and int(digits, 16) >= 0
    assert repr(device) == f"BackendDevice(provider=modal, gpu=A100-40GB, id={device.device_id})"


def test_equality_and_hash_are_by_id() -> None:
    one, other = create_modal_device("T4"), create_modal_device("T4")
    assert one == one and one != other
    assert len({one, other, one}) == 2
    assert one == one.device() and one != other.device()
    assert one != "T4"
    for same in (copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert same is one


@pytest.mark.parametrize("gpu", ["X", "", "a100", "A100-40gbx"])
def test_a_wrong_type_is_refused_with_those_that_there_are(gpu: str) -> None:
    with pytest.raises(ValueError) as raised:
        create_modal_device(gpu)
    assert str(raised.value) == f"Invalid GPU type '{gpu}'. Valid types: {GPUS}"


def test_a_wrong_provider_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match=r"Invalid provider 'nope'. Valid providers: .*'modal'"):
        create_device("nope", "T4")


def test_the_registry_knows_devices_by_index_and_id() -> None:
    registry = get_device_registry()
    one, other = create_modal_device("T4"), create_modal_device("H100")
    assert registry is get_device_registry()
    assert registry.register_device(one) == registry.get_device_index(one) == one.index
    assert registry.get_device_by_index(one.index) is one
    assert registry.get_device_by_id(other.device_id) is other
    assert registry.get_device_by_id("modal-none") is None
    assert registry.get_device_by_index(99) is None
    assert registry.devices_compatible(one, one)
    assert not registry.devices_compatible(one, other)


def test_a_cleared_device_is_known_no_more() -> None:
    registry = get_device_registry()
    device = create_modal_device("T4")
    registry.clear()
    assert len(registry) == 0 and registry.get_device_index(device) is None
    with pytest.raises(RuntimeError, match="was cleared"):
        registry.register_device(device)
    with pytest.raises(RuntimeError, match=r"does not exist|was stopped"):
        torch.ones(1, device=device)


def test_indices_of_dropped_devices_are_used_again() -> None:
    for _ in range(100):
        create_modal_device("T4")
    kept = [create_device("local") for _ in range(3)]
    assert len({device.index for device in kept}) == 3


def test_more_devices_than_indices_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="remote devices are in use"):
        _ = [create_modal_device("T4") for _ in range(20)]


@pytest.mark.skipif(find_spec("modal") is not None, reason="Modal's SDK is installed")
def test_a_first_use_of_modal_without_its_sdk_says_what_to_install() -> None:
    device = create_modal_device("A100-40GB")
    for _ in range(2):
        with pytest.raises(
            torch_remote.ConnectionError, match=r"pip install 'torch-remote\[modal\]'"
        ):
            torch.ones(2, device=device)
    assert torch.ones(2, device="remote").sum().item() == 2


def test_the_first_use_launches_the_machine() -> None:
    before = len(torch_remote.machines())
    device = create_device("local")
    assert len(torch_remote.machines()) == before
    x = torch.arange(3.0, device=device)
    assert len(torch_remote.machines()) == before + 1
    assert x.device == device and x.tolist() == [0, 1, 2]
    model = torch.nn.Linear(3, 1).to(device)
    assert model(x).device == device.device()
    with pytest.raises(RuntimeError, match=r"same device.*remote:0"):
        x + torch.ones(3, device="remote:0")
    next(each for each in torch_remote.machines() if x.device in each.devices).stop()


def test_a_machine_of_a_device_that_was_stopped_is_launched_again() -> None:
    device = create_device("local")
    for _ in range(2):
        assert torch.ones(2, device=device).sum().item() == 2
        machine = next(each for each in torch_remote.machines() if device.device() in each.devices)
        machine.stop()


def test_a_created_device_leaves_remote_0_to_the_default_machine() -> None:
    said = assert_runs("""
        import torch, torch_remote
        device = torch_remote.create_device("local")
        print(device, torch.remote.device_count(), len(torch_remote.machines()))
        print(torch.ones(2, device=device).sum().item(), len(torch_remote.machines()))
        print(torch.ones(2, device="remote").device, len(torch_remote.machines()))
        print(torch_remote.connect("local").devices[0])
    """)
    assert said.splitlines() == ["remote:1 2 0", "2.0 1", "remote:0 2", "remote:2"]


def test_connect_gets_remote_0_although_a_device_was_created_before() -> None:
    said = assert_runs("""
        import torch, torch_remote
        device = torch_remote.create_device("local")
        print(torch_remote.connect("local").devices[0], device)
    """)
    assert said == "remote:0 remote:1"


def test_threads_that_use_a_device_first_launch_one_machine() -> None:
    said = assert_runs("""
        import threading, torch, torch_remote
        device = torch_remote.create_device("local")
        results = []
        work = lambda: results.append(torch.ones(2, device=device).sum().item())
        threads = [threading.Thread(target=work) for _ in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        print(results == [2.0] * 8, len(torch_remote.machines()))
    """)
    assert said == "True 1"


def test_an_error_for_memory_names_the_next_larger_type() -> None:
    device = create_modal_device("A100-40GB")
    error = torch_remote._errors.RemoteOutOfMemoryError(
        f"aten::empty on {device} (host, A100): 50 GiB wanted"
    )
    assert str(error).endswith("; the next larger type is L40S")
    largest = create_modal_device("B200")
    error = torch_remote._errors.RemoteOutOfMemoryError(f"aten::empty on {largest} (host, B200): x")
    assert str(error).endswith(": x")
