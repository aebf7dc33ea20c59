"""This process can be profiled; profiling the remote device prints that it cannot."""

from __future__ import annotations

import pytest
import torch
from helpers import run_python


def work() -> torch.Tensor:
    return torch.ones(3, device="remote") + 1


def test_use_device_is_one_warning_and_no_traces() -> None:
    done = run_python("""
        import torch, torch_remote
        with torch.autograd.profiler.profile(use_device="remote") as profile:
            (torch.ones(3, device="remote") + 1).tolist()
        print("aten::add" in {event.key for event in profile.key_averages()})
    """)
    assert done.stdout.splitlines()[-1] == "True"
    lines = [line for line in done.stderr.splitlines() if "profiler_" not in line]  # Kineto's own
    assert lines == [
        "<string>:3: UserWarning: remote devices cannot be profiled yet, "
        "profiling this process only"
    ]


def test_the_kineto_profiler_warns_too() -> None:
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.PrivateUse1]
    with (
        pytest.warns(UserWarning, match="remote devices cannot be profiled yet"),
        torch.profiler.profile(activities=activities) as profile,
    ):
        work()
    assert "aten::add" in {event.key for event in profile.key_averages()}


@pytest.mark.filterwarnings("error")
def test_profiling_this_process_warns_of_nothing() -> None:
    with torch.autograd.profiler.profile() as profile:
        work()
    assert "aten::add" in {event.key for event in profile.key_averages()}
    with torch.autograd.profiler.profile(False, use_device="remote"):
        work()
