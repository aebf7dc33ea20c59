"""Profiles of a CUDA server: times are the GPU's, and lie on the client's axis within 50 µs."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.autograd import DeviceType

CALLS = 20
ERROR = 50  # microseconds


def events_of(profile: Any, device: DeviceType, name: str) -> list[Any]:
    found = [each for each in profile.events() if each.device_type == device and each.name == name]
    return sorted(found, key=lambda each: each.time_range.start)


@pytest.fixture(scope="module")
def matrix() -> torch.Tensor:
    matrix = torch.rand(4096, 4096, device="remote")
    for _ in range(3):
        matrix.mm(matrix).sum().item()
    with torch.profiler.profile():  # the first one starts Kineto
        matrix.mm(matrix)
    return matrix


def test_device_times_are_those_of_events(matrix: torch.Tensor) -> None:
    begin, end = (torch.remote.Event(enable_timing=True) for _ in range(2))
    with torch.profiler.profile() as profile:
        begin.record()
        for _ in range(CALLS):
            matrix.mm(matrix)
        end.record()
        end.synchronize()
    slices = events_of(profile, DeviceType.PrivateUse1, "mm")
    assert len(slices) == CALLS
    total = sum(each.time_range.elapsed_us() for each in slices)
    assert total == pytest.approx(begin.elapsed_time(end) * 1000, rel=0.2)
    for earlier, later in pairwise(slices):
        assert earlier.time_range.end <= later.time_range.start + 5


def test_the_device_runs_a_call_after_it_was_made_and_before_its_value_is_here(
    matrix: torch.Tensor,
) -> None:
    with torch.profiler.profile() as profile:
        for _ in range(CALLS):
            matrix.sum().item()
    made = events_of(profile, DeviceType.CPU, "aten::sum")
    read = events_of(profile, DeviceType.CPU, "aten::item")
    ran = events_of(profile, DeviceType.PrivateUse1, "sum")
    assert len(made) == len(read) == len(ran) == CALLS
    for call, value, there in zip(made, read, ran, strict=True):
        assert there.time_range.start > call.time_range.start - ERROR
        assert there.time_range.end < value.time_range.end + ERROR


def test_more_calls_than_events_wait(matrix: torch.Tensor) -> None:
    small = matrix[:8, :8].contiguous()
    with torch.profiler.profile() as profile:
        for _ in range(6000):
            small.add(1)
    assert len(events_of(profile, DeviceType.PrivateUse1, "add")) == 6000
