"""Memory under the redirect: figures, budgets, and running out of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import assert_runs
from redirecting import redirected

import torch_remote
import TorchDevice


def test_memory_snapshots_are_the_devices_own(remote: str, tmp_path: Path) -> None:
    torch.cuda.memory._record_memory_history(max_entries=100)
    try:
        x = torch.ones(1000, device="cuda")
        snapshot = torch.cuda.memory._snapshot()
        torch.cuda.memory._dump_snapshot(str(tmp_path / "snapshot.pickle"))
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    assert snapshot.keys() >= {"segments", "device_traces"}
    frames = [
        frame for trace in snapshot["device_traces"] for event in trace
        for frame in event.get("frames", [])
    ]  # fmt: skip
    assert any(frame["filename"] == __file__ for frame in frames)
    assert (tmp_path / "snapshot.pickle").stat().st_size > 0
    assert any(each["requested_size"] == x.nbytes for each in torch.cuda.memory_snapshot())
    with redirected("cpu"), pytest.raises(NotImplementedError, match="memory_stats"):
        torch.cuda.memory._snapshot()


def test_figures_of_memory_are_true(used: str) -> None:
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    x = torch.ones(2**23, device="cuda")
    x.sum().item()
    size = 4 * 2**23
    assert torch.cuda.memory_allocated("cuda:0") - before > size * 0.9
    assert torch.cuda.max_memory_allocated() - before > size * 0.9
    free, total = torch.cuda.mem_get_info()
    assert 0 < free < total == torch.cuda.get_device_properties("cuda").total_memory
    assert torch.cuda.memory_stats()["allocated_bytes.all.current"] > size * 0.9


def test_a_budget_limits_and_measures(used: str) -> None:
    with TorchDevice.memory_budget("1MiB") as budget:
        x = torch.ones(1024, device="cuda")
        y = x + 1
        del y
        z = x * 2
    assert budget.allocated == 8192
    assert 8192 <= budget.peak <= 12288
    with pytest.raises(torch.OutOfMemoryError, match="budget"), TorchDevice.memory_budget("1KiB"):
        torch.ones(1024, device="cuda")
    assert z.sum().item() == 2048


def test_no_memory_reads_as_a_cuda_program_expects(used: str) -> None:
    with pytest.raises(torch.OutOfMemoryError, match="bytes are free") as raised:
        torch.empty(2**50, device="cuda")
    assert isinstance(raised.value, torch.cuda.OutOfMemoryError)
    assert "largest tensors" in str(raised.value)
    assert isinstance(raised.value.__cause__, RuntimeError)
    assert raised.value.__cause__ is not raised.value
    with pytest.raises(RuntimeError, match="negative dimension"):
        torch.empty(-1, device="cuda")


def test_an_allocation_is_tried_again_once(used: str, monkeypatch: pytest.MonkeyPatch) -> None:
    emptied = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(1))
    with pytest.raises(torch.OutOfMemoryError):
        torch.ones(2**50, device="cuda")
    assert emptied == [1]


NO_MEMORY = """
import threading, torch, torch_remote, TorchDevice
TorchDevice.enable("foreign")
calls = {
    "factory": lambda x: torch.zeros(2, device="cuda"),
    "cuda": lambda x: torch.ones(2).cuda(),
    "like": lambda x: torch.zeros_like(x, device="cuda"),
    "module": lambda x: torch.nn.Linear(2, 2).cuda(),
}
for number, (name, call) in enumerate(calls.items()):
    done = torch.zeros(1, device="cuda")
    huge = torch.ones(1, device="cuda").expand(2**20, 2**20 + number)
    torch.cuda.synchronize()
    try:
        torch.kthvalue(huge, 1, 0)  # fails on the server
        done.add_(10)
        other = threading.Thread(target=lambda: torch.ones(1, device="cuda").item())
        other.start()
        other.join()  # the failure has come before its answer
        call(done)
        print(name, "lost", done.item())
    except torch_remote.RemoteError as error:
        print(name, "kthvalue" in str(error), torch.ones(1, device="cuda").add_(1).item())
"""


def test_no_memory_for_an_earlier_call_is_raised_by_the_next() -> None:
    printed = assert_runs(NO_MEMORY, TORCHDEVICE_LOG_LEVEL="ERROR").splitlines()
    assert printed == [f"{name} True 2.0" for name in ("factory", "cuda", "like", "module")]


def test_no_memory_for_the_call_itself_is_tried_again(
    remote: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    emptied: list[int] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(1))
    with pytest.raises(torch.OutOfMemoryError, match="largest tensors") as raised:
        torch.zeros(2**41, device="cuda")
    assert emptied == [1]
    assert isinstance(raised.value.__cause__, torch_remote.RemoteError)
    assert torch.ones(2, device="cuda").tolist() == [1.0, 1.0]


def test_a_failure_is_not_hidden_by_a_figure(remote: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_remote import _telemetry

    def fail(index: int) -> Any:
        raise torch_remote.RemoteError("of an earlier call")

    monkeypatch.setattr(_telemetry._C, "device_telemetry", fail)
    with pytest.raises(torch_remote.RemoteError, match="earlier"):
        torch.cuda.device_memory_used()
