"""Memory figures are the server's own, per device, and a tensor counts from `empty` on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from helpers import assert_runs, serving

import torch_remote

MIB = 1 << 20


def test_a_tensor_counts_from_empty_on_until_it_is_freed() -> None:
    before = torch.remote.memory_allocated()
    x = torch.empty(MIB, device="remote")
    assert torch.remote.memory_allocated() == before + 4 * MIB
    y = x + 1
    assert torch.remote.memory_allocated() == before + 8 * MIB
    del x, y
    assert torch.remote.memory_allocated() == before


def test_peaks_are_kept_and_reset() -> None:
    torch.remote.reset_peak_memory_stats()
    before = torch.remote.max_memory_allocated()
    torch.ones(MIB, device="remote")
    assert torch.remote.max_memory_allocated() >= before + 4 * MIB
    torch.remote.reset_peak_memory_stats()
    assert torch.remote.max_memory_allocated() == torch.remote.memory_allocated()


def test_asking_waits_once() -> None:
    torch.ones(2, device="remote")
    for ask in (
        torch.remote.memory_allocated,
        torch.remote.memory_stats,
        torch.remote.mem_get_info,
    ):
        with torch_remote.count() as counted:
            ask()
        assert counted.syncs == 1


def test_stats_summary_and_torch_accelerator_agree() -> None:
    x = torch.ones(1000, device="remote")
    stats = torch.remote.memory_stats()
    assert stats["allocated_bytes.all.current"] == torch.remote.memory_allocated()
    assert stats["allocated_bytes.all.current"] == torch.accelerator.memory_allocated()
    assert stats["allocated_bytes.all.peak"] == torch.accelerator.max_memory_allocated()
    assert torch.accelerator.memory_stats()["allocated_bytes.all.current"] >= x.nbytes
    nested = torch.remote.memory.memory_stats_as_nested_dict()
    assert nested["allocated_bytes"]["all"]["current"] == stats["allocated_bytes.all.current"]
    assert "Allocated memory" in torch.remote.memory_summary(abbreviated=True)
    free, total = torch.remote.mem_get_info()
    assert 0 < free <= total
    torch.remote.empty_cache()
    torch.accelerator.empty_cache()
    torch.accelerator.reset_peak_memory_stats()
    torch.accelerator.reset_accumulated_memory_stats()
    assert torch.remote.memory_stats()["allocated_bytes.all.allocated"] == 0


def test_each_device_has_figures_of_its_own(tmp_path: Path) -> None:
    with (
        serving(f"unix://{tmp_path}/server.sock", "--device", "cpu", "--devices", "2") as url,
        torch_remote.connect(url) as machine,
    ):
        one, two = machine.devices
        x = torch.ones(MIB, device=two)
        assert torch.remote.memory_allocated(one) == 0
        assert torch.remote.memory_allocated(two) == x.nbytes


def test_out_of_memory_is_raised_by_the_call_near_the_limit(tmp_path: Path) -> None:
    with (
        serving(f"unix://{tmp_path}/server.sock", "--device", "cpu") as url,
        torch_remote.connect(url) as machine,
    ):
        device = machine.devices[0]
        x = torch.ones(2, device=device)
        total = torch.remote.mem_get_info(device)[1]
        with pytest.raises(torch.OutOfMemoryError):
            x[0].expand(total).clone()  # four times the memory of the server
        x.add_(1)
        assert x.tolist() == [2, 2]


TOO_LARGE = 1 << 45

EMPTIES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "empty": lambda x: torch.empty(TOO_LARGE, dtype=torch.uint8, device=x.device),
    "new_empty": lambda x: x.new_empty(TOO_LARGE),
    "empty_like": lambda x: torch.empty_like(
        torch.empty(TOO_LARGE, device="meta"), device=x.device
    ),
    "empty_strided": lambda x: torch.empty_strided((TOO_LARGE,), (1,), device=x.device),
    "resize_": lambda x: torch.empty(0, device=x.device).resize_(TOO_LARGE),
}


@pytest.mark.parametrize("name", EMPTIES)
def test_memory_that_the_server_does_not_have_is_refused_by_the_factory(name: str) -> None:
    x = torch.ones(2, device="remote")
    torch.remote.reset_peak_memory_stats()
    shortages = torch.remote.memory_stats()["num_ooms"]
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate") as raised:
        EMPTIES[name](x)
    assert "test_memory.py" in str(raised.value)
    assert torch.remote.max_memory_allocated() < TOO_LARGE
    assert torch.remote.memory_allocated() < TOO_LARGE
    assert torch.remote.memory_stats()["num_ooms"] == shortages + 1
    assert (x + 1).tolist() == [2, 2]


def test_empty_memory_is_got_at_once_where_calls_block(tmp_path: Path) -> None:
    options = ("--device", "cpu", "--max-memory", "100MiB")
    with serving(f"unix://{tmp_path}/server.sock", *options) as url:
        assert_runs(
            """
            import torch, torch_remote
            size = 60 << 20
            kept = torch.empty(size, dtype=torch.uint8, device="remote")
            try:
                torch.empty(size, dtype=torch.uint8, device="remote")
            except torch.OutOfMemoryError as error:
                assert "out of memory" in str(error)
            else:
                raise AssertionError("120 MiB of 100 MiB")
            del kept
            assert torch.ones(size, dtype=torch.uint8).to("remote").sum().item() == size
            """,
            TORCH_REMOTE=url,
            TORCH_REMOTE_BLOCKING="1",
        )


def test_a_read_of_memory_that_the_server_does_not_have_says_so(tmp_path: Path) -> None:
    options = ("--device", "cpu", "--max-memory", "32MiB")
    with (
        serving(f"unix://{tmp_path}/server.sock", *options) as url,
        torch_remote.connect(url) as machine,
    ):
        # Before the first call a factory of little memory does not wait for the server.
        x = torch.empty(40 * MIB, dtype=torch.uint8, device=machine.devices[0])
        with pytest.raises(torch.OutOfMemoryError, match=r"out of memory\. Tried to") as raised:
            x[0].item()
        assert "test_memory.py" in str(raised.value)


def test_a_servers_limit_is_the_devices_size_and_the_call_over_it_raises(tmp_path: Path) -> None:
    options = ("--device", "cpu", "--max-memory", "64MiB")
    with (
        serving(f"unix://{tmp_path}/server.sock", *options) as url,
        torch_remote.connect(url) as machine,
    ):
        device = machine.devices[0]
        assert torch.remote.get_device_properties(device).total_memory == 64 * MIB
        x = torch.ones(20 * MIB, dtype=torch.uint8, device=device)
        for make in (
            lambda: torch.empty(60 * MIB, dtype=torch.uint8, device=device),
            lambda: torch.zeros(60 * MIB, dtype=torch.uint8, device=device),
            lambda: torch.cat([x, x, x]),
            lambda: x.float(),
            lambda: x.to(torch.float64, copy=True),
        ):
            with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
                make()  # nothing is read
        assert x.sum().item() == 20 * MIB


def test_all_of_cudas_figures_are_there_before_the_first_tensor() -> None:
    assert_runs(
        """
        import torch, torch_remote
        def names():
            return set(torch.remote.memory_stats())
        before = names()
        for kind in ("allocated_bytes", "reserved_bytes", "active", "inactive_split", "segment"):
            for pool in ("all", "small_pool", "large_pool"):
                for figure in ("current", "peak", "allocated", "freed"):
                    assert torch.remote.memory_stats()[f"{kind}.{pool}.{figure}"] == 0
        assert torch.remote.memory_stats()["num_ooms"] == 0
        x = torch.ones(2, device="remote")
        assert torch.remote.memory_stats()["allocated_bytes.all.current"] >= x.nbytes
        assert names() == before
        """,
        anew=True,
    )


def test_a_resize_that_does_not_fit_raises_and_is_not_counted(tmp_path: Path) -> None:
    with (
        serving(f"unix://{tmp_path}/server.sock", "--device", "cpu") as url,
        torch_remote.connect(url) as machine,
    ):
        x, y = torch.ones(2, device=machine.devices[0]), torch.ones(2, device=machine.devices[0])
        x.add_(1)  # the server knows it
        total = torch.remote.mem_get_info(machine.devices[0])[1]
        with pytest.raises(torch.OutOfMemoryError):
            x.resize_(total)
        with torch_remote.count() as counted:
            y.add_(1)
        assert counted.syncs == 0
        assert y.tolist() == [2, 2]


def test_without_a_machine_nothing_is_started() -> None:
    assert_runs("""
        import torch, torch_remote
        assert torch.remote.memory_allocated() == 0
        assert torch.remote.memory_stats() is not None
        torch.remote.empty_cache()
        torch.remote.reset_peak_memory_stats()
        assert not torch.remote.is_initialized()
    """)


def test_a_fraction_limits_this_program_and_no_call_over_it_is_sent() -> None:
    x = torch.ones(MIB, device="remote")
    total = torch.remote.mem_get_info()[1]
    fraction = (torch.remote.memory_allocated() + 16 * MIB) / total
    torch.remote.set_per_process_memory_fraction(fraction)
    try:
        with torch_remote.count() as counted:
            for grow in (
                lambda: x.expand(8, -1) + 1,
                lambda: torch.empty(8 * MIB, device="remote"),
                lambda: torch.empty(0, device="remote").resize_(8 * MIB),
                lambda: torch.ones(8 * MIB).to("remote"),
            ):
                with pytest.raises(torch.OutOfMemoryError, match=r" out of memory\. .*fraction"):
                    grow()
            y = x * 2  # 4 MiB fit
        assert (counted.calls, counted.syncs) == (1, 0)
        assert y.sum().item() == 2 * MIB
        assert torch.remote.get_per_process_memory_fraction() == fraction
    finally:
        torch.remote.set_per_process_memory_fraction(1.0)
    assert (x.expand(8, -1) + 1).sum().item() == 16 * MIB


OVER_THE_LIMIT = """
import torch, torch_remote
x = torch.ones(2**20, device="remote")
total = torch.remote.mem_get_info()[1]
for more in (2**22, -1):
    torch.remote.set_per_process_memory_fraction((torch.remote.memory_allocated() + more) / total)
    try:
        torch.empty(2**21, device="remote")
    except torch.OutOfMemoryError:
        print("empty", end=" ")
    try:
        x.expand(2, -1) + 1
    except torch.OutOfMemoryError:
        print("add", end=" ")
    print(x.mul_(2)[0].item())  # needs no memory
"""


@pytest.mark.parametrize("blocking", ["0", "1"])
def test_the_fraction_holds_in_blocking_mode_and_calls_without_new_memory_go_on(
    blocking: str,
) -> None:
    printed = assert_runs(OVER_THE_LIMIT, TORCH_REMOTE_BLOCKING=blocking).splitlines()
    assert printed == ["empty add 2.0", "empty add 4.0"]
