"""Figures of NVML: torch.cuda's names and meanings, and one sentence where there are none.

tests/cpp/server/device/nvml_test.cpp reads them from a library that stands in for NVML.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
import torch

import torch_remote
from torch_remote import _C

FIGURES = {
    "utilization": "utilization",
    "memory_usage": "memory usage",
    "device_memory_used": "memory used",
    "temperature": "temperature",
    "power_draw": "power draw",
    "clock_rate": "clock rate",
}
NAMES = [*FIGURES, "list_gpu_processes"]


@pytest.mark.parametrize("name", NAMES)
def test_a_cpu_server_says_that_it_has_none(name: str) -> None:
    torch.ones(2, device="remote")
    with (
        torch_remote.count() as counted,
        pytest.raises(RuntimeError, match=r"remote:0 \(.*\) has no NVML figures: it is a CPU"),
    ):
        getattr(torch.remote, name)()
    assert counted.syncs == 1


@pytest.mark.parametrize("name", NAMES)
def test_arguments_are_those_of_torch_cuda(name: str) -> None:
    ours, theirs = (
        inspect.signature(getattr(module, name)) for module in (torch.remote, torch.cuda)
    )
    assert list(ours.parameters) == list(theirs.parameters)
    assert ours.parameters["device"].default is None


Answer = tuple[dict[str, int], list[tuple[int, int | None]] | None]


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Callable[[Answer], None]:
    return lambda told: monkeypatch.setattr(_C, "device_telemetry", lambda index: told)


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_the_servers_or_an_error_that_names_it(
    name: str, answer: Callable[[Answer], None]
) -> None:
    answer(({FIGURES[name]: 0}, None))
    assert getattr(torch.remote, name)() == 0
    answer(({}, None))
    with pytest.raises(RuntimeError, match=f"NVML does not tell the {FIGURES[name]} of remote:0"):
        getattr(torch.remote, name)("remote:0")


def test_processes_are_listed_in_torch_cudas_words(answer: Callable[[Answer], None]) -> None:
    answer(({}, [(1234, 3 << 19), (5678, None)]))
    assert torch.remote.list_gpu_processes().splitlines() == [
        "GPU:0",
        "process       1234 uses        1.500 MB GPU memory",
        "process       5678 uses an unknown amount of GPU memory",
    ]
    answer(({}, []))
    assert torch.remote.list_gpu_processes() == "GPU:0\nno processes are running"
    answer(({}, None))
    with pytest.raises(RuntimeError, match="NVML does not tell the processes of remote:0"):
        torch.remote.list_gpu_processes()


def test_a_device_that_does_not_exist_is_an_error() -> None:
    torch.ones(2, device="remote")
    with pytest.raises(RuntimeError, match="remote:14 does not exist"):
        torch.remote.utilization("remote:14")
