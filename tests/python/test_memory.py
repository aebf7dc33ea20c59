"""Memory figures are the server's own, per device, and a tensor counts from `empty` on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers import serving

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
    from helpers import assert_runs

    assert_runs("""
        import torch, torch_remote
        assert torch.remote.memory_allocated() == 0
        assert torch.remote.memory_stats() is not None
        torch.remote.empty_cache()
        torch.remote.reset_peak_memory_stats()
        assert not torch.remote.is_initialized()
    """)
