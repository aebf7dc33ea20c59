"""`torch.remote` has the functions of `torch.cuda` and starts no server early."""

from __future__ import annotations

import copy
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import ModuleType

import pytest
import torch
from helpers import DEADLINE, assert_runs, serving

import torch_remote

pytestmark = pytest.mark.slow


def test_the_module_is_known_to_torch_under_its_name() -> None:
    assert torch.get_device_module("remote") is torch.remote
    assert torch.accelerator.current_accelerator() == torch.device("remote")
    assert torch.tensor(1.0).is_remote is False
    assert torch.ones(2, device="remote").is_remote


def test_asking_about_devices_and_seeding_start_no_server() -> None:
    said = assert_runs("""
        import torch, torch_remote
        torch.manual_seed(1); torch.remote.manual_seed(2); torch.remote.manual_seed_all(3)
        torch.remote.initial_seed(), torch.remote.current_device()
        torch.remote.default_generators[0]
        torch.remote.set_device(0)
        torch.remote.synchronize()
        device = torch.remote
        print(device.is_available(), device.device_count(), device.is_initialized())
        print(device._initialized, torch_remote.machines())
        torch.ones(1, device="remote")
        print(device.is_initialized(), device._initialized, len(torch_remote.machines()))
    """)
    assert said.splitlines() == ["True 1 False", "False []", "True True 1"]


def test_is_available_touches_no_network() -> None:
    said = assert_runs(
        "import torch, torch_remote; print(torch.remote.is_available())",
        TORCH_REMOTE="tcp://127.0.0.1:1",
    )
    assert said == "True"


def test_a_configured_machine_that_is_not_there_is_a_connection_error() -> None:
    said = assert_runs(
        """
        import builtins, torch, torch_remote
        try:
            torch.remote.device_count()
        except torch_remote.ConnectionError as error:
            print(isinstance(error, builtins.ConnectionError), "127.0.0.1:1" in str(error))
        """,
        TORCH_REMOTE="tcp://127.0.0.1:1",
        TORCH_REMOTE_TOKEN="x" * 32,
    )
    assert said == "True True"


def test_all_devices_are_counted_although_the_first_call_did_not_wait_for_them(
    tmp_path: Path,
) -> None:
    with serving(f"unix://{tmp_path}/s", "--devices", "3") as url:
        said = assert_runs(
            """
            import torch, torch_remote
            x = torch.ones(2, device="remote")
            print(torch.remote.device_count())
            """,
            TORCH_REMOTE=url,
        )
    assert said == "3"


def test_the_current_device_changes_for_a_block_and_back() -> None:
    with torch_remote.connect("local") as machine:
        index = machine.devices[0].index
        before = torch.remote.current_device()
        for spelling in (index, f"remote:{index}", machine.devices[0]):
            with torch.remote.device(spelling):
                assert torch.remote.current_device() == index
                assert torch.ones(1, device="remote").device.index == index
            assert torch.remote.current_device() == before
        with torch.remote.device_of(torch.ones(1, device=machine.devices[0])):
            assert torch.remote.current_device() == index
        assert torch.remote.current_device() == before


@pytest.mark.parametrize("spelling", [None, -1, "remote"])
def test_a_block_with_no_index_changes_nothing(spelling: object) -> None:
    before = torch.remote.current_device()
    with torch.remote.device(spelling):
        assert torch.remote.current_device() == before
    with torch.remote.device_of(torch.ones(1)):
        assert torch.remote.current_device() == before


@pytest.mark.parametrize("spelling", ["remote:15", "remote:99", "remote:999"])
def test_a_device_that_does_not_exist_is_an_error_that_lists_those_that_do(spelling: str) -> None:
    actions = [
        lambda: torch.remote.set_device(spelling),
        lambda: torch.remote.get_device_properties(spelling),
        lambda: torch.empty(1, device=spelling),
        lambda: torch.ones(1).to(spelling),
    ]
    for action in actions:
        with pytest.raises(RuntimeError, match=r"does not exist; there (is|are) remote:0"):
            action()


def test_a_device_of_another_kind_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="Expected a remote device, but got: cpu"):
        torch.remote.set_device("cpu")


def test_properties_are_the_servers_and_print_like_cudas() -> None:
    properties = torch.remote.get_device_properties("remote:0")
    assert properties.name == torch.remote.get_device_name(0)
    assert properties.total_memory > 0
    assert properties.multi_processor_count > 0
    text = repr(properties)
    assert text.startswith(f"_RemoteDeviceProperties(name='{properties.name}', major=")
    assert f"total_memory={properties.total_memory // 2**20}MB" in text


def test_streams_are_in_order_and_events_complete() -> None:
    stream = torch.remote.current_stream()
    assert stream == torch.remote.default_stream()
    event = torch.remote.Event()
    with torch.remote.stream(stream):
        value = torch.ones(8, device="remote") + 1
        event.record(stream)
    event.synchronize()
    assert event.query()
    assert value.sum().item() == 16
    with torch.remote.stream(None):
        assert torch.remote.current_stream() == stream


def test_empty_cache_and_synchronize_leave_values_alone() -> None:
    value = torch.arange(4, device="remote")
    torch.remote.empty_cache()
    torch.remote.synchronize()
    torch_remote.synchronize()
    assert value.tolist() == [0, 1, 2, 3]


def test_dlpack_is_refused_with_advice() -> None:
    tensor = torch.ones(2, device="remote")
    for export in (
        tensor.__dlpack__,
        tensor.__dlpack_device__,
        lambda: torch.from_dlpack(tensor),
        lambda: torch.utils.dlpack.to_dlpack(tensor),
    ):
        with pytest.raises(BufferError, match=r"\.cpu\(\)"):
            export()
    assert torch.from_dlpack(torch.ones(2)).tolist() == [1, 1]


def test_whoever_waits_at_a_queue_is_told_that_a_tensor_was_refused() -> None:
    """As in a DataLoader. An exception in the queue's thread is only printed."""
    queue = torch.multiprocessing.Queue()
    queue.put([torch.ones(2, device="remote")])
    with pytest.raises(RuntimeError, match=r"send tensor\.cpu\(\)"):
        queue.get(timeout=DEADLINE)
    queue.put("next")
    assert queue.get(timeout=DEADLINE) == "next"


def test_a_queue_between_processes_is_refused_with_advice() -> None:
    with pytest.raises(RuntimeError, match=r"\.cpu\(\)"):
        ForkingPickler.dumps(torch.ones(2, device="remote"))
    with pytest.raises(RuntimeError, match=r"\.cpu\(\)"):
        ForkingPickler.dumps(torch.nn.Parameter(torch.ones(2, device="remote")))
    ForkingPickler.dumps(torch.ones(2))


def test_numpy_is_refused_as_cuda_refuses_it() -> None:
    with pytest.raises(TypeError, match=r"Tensor\.cpu\(\)"):
        torch.ones(2, device="remote").numpy()


def test_generated_methods_move_tensors_modules_and_storages() -> None:
    assert torch.ones(2).remote().device == torch.device("remote:0")
    assert next(torch.nn.Linear(2, 2).remote().parameters()).is_remote
    assert torch.ones(2).untyped_storage().remote().device == torch.device("remote:0")
    assert copy.deepcopy(torch.ones(2, device="remote")).is_remote


@pytest.mark.parametrize("module", [torch_remote, torch.remote])
def test_a_module_lists_its_public_names_and_nothing_it_imported(module: ModuleType) -> None:
    public = [name for name in dir(module) if not name.startswith("_")]
    assert public == sorted(name for name in module.__all__ if not name.startswith("_"))
    assert set(module.__all__) <= set(dir(module))
    assert all(hasattr(module, name) for name in dir(module))
