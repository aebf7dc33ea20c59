"""Telemetry and memory snapshots of a real GPU. Uses only `remote`."""

from __future__ import annotations

import pytest
import torch

import torch_remote  # noqa: F401  names the backend

MIB = 1 << 20


def test_nvmls_figures_are_plausible() -> None:
    x = torch.ones(64 * MIB, device="remote")
    assert 0 <= torch.remote.utilization() <= 100
    assert 0 <= torch.remote.memory_usage() <= 100
    assert 10 < torch.remote.temperature() < 120
    assert 1000 < torch.remote.power_draw() < 2_000_000
    assert 0 < torch.remote.clock_rate() < 10_000
    total = torch.remote.mem_get_info()[1]
    assert x.nbytes <= torch.remote.memory_reserved() <= torch.remote.device_memory_used() <= total
    assert torch.remote.list_gpu_processes().startswith("GPU:0\n")


def test_sums_over_segments_are_the_allocators_figures() -> None:
    kept = [torch.ones(size, device="remote") for size in (1, 1000, 3 * MIB)]
    torch.randn(512, 512, device="remote") @ torch.randn(512, 512, device="remote")
    segments = torch.remote.memory_snapshot()
    allocated = sum(segment["allocated_size"] for segment in segments)
    reserved = sum(segment["total_size"] for segment in segments)
    assert allocated == torch.remote.memory_allocated()
    assert reserved == torch.remote.memory_reserved()
    addresses = {segment["address"] for segment in segments}
    assert {tensor.untyped_storage().data_ptr() for tensor in kept} <= addresses


def test_out_of_memory_is_recorded_with_cudas_figures() -> None:
    torch.remote.memory._record_memory_history()
    try:
        total = torch.remote.mem_get_info()[1]
        with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
            torch.ones(total, device="remote").sum().item()
        (event,) = (
            event
            for event in torch.remote.memory._snapshot()["device_traces"][0]
            if event["action"] == "oom"
        )
        assert event["size"] == pytest.approx(4 * total, rel=0.01)
        assert 0 < event["device_free"] <= total
    finally:
        torch.remote.memory._record_memory_history(None)
