"""Memory under the redirect: figures, budgets, and running out of it."""

from __future__ import annotations

import gc
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import assert_runs, serving
from redirecting import redirected

import torch_remote
import TorchDevice
from TorchDevice import _C


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


def test_a_tensor_over_the_budget_is_not_listed_and_is_freed(used: str) -> None:
    size = 2**20 + 8
    for make in (torch.zeros, torch.ones, torch.empty):
        with (
            pytest.raises(torch.OutOfMemoryError, match="budget") as raised,
            TorchDevice.memory_budget("1MiB"),
        ):
            make(size, device="cuda")
        assert f"needs {4 * size} bytes" in str(raised.value)
        assert f"{4 * size} bytes ({size},)" not in str(raised.value)
    kept = torch.ones(size, device="cuda")
    with (
        pytest.raises(torch.OutOfMemoryError, match="budget") as raised,
        TorchDevice.memory_budget("1MiB"),
    ):
        torch.stack([kept, kept])
    held = [each for each in gc.get_objects() if type(each) is torch.Tensor]
    assert not any(each.numel() == 2 * size for each in held)


def test_a_fraction_of_the_memory_limits_the_tensors(used: str) -> None:
    total = torch.cuda.get_device_properties("cuda").total_memory
    fraction = (torch.cuda.memory_allocated() + 2**26) / total
    torch.cuda.set_per_process_memory_fraction(fraction, "cuda:0")
    try:
        assert torch.cuda.get_per_process_memory_fraction() == fraction
        for _ in range(8):  # what is freed can be used again
            x = torch.ones(2**22, device="cuda")  # 16 MiB
        with pytest.raises(torch.OutOfMemoryError, match="set_per_process_memory_fraction"):
            torch.empty(2**26, device="cuda")
        with pytest.raises(torch.OutOfMemoryError, match="set_per_process_memory_fraction"):
            x.expand(16, -1) + 1
        with pytest.raises(torch.OutOfMemoryError, match="set_per_process_memory_fraction"):
            torch.empty(0, device="cuda").resize_(2**26)
        assert x.sum().item() == 2**22
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert torch.empty(2**26, device="cuda").device == x.device
    assert torch.cuda.get_per_process_memory_fraction() == 1.0
    with pytest.raises(ValueError, match="0~1"):
        torch.cuda.set_per_process_memory_fraction(1.5)
    with pytest.raises(TypeError, match="float"):
        torch.cuda.set_per_process_memory_fraction(1)


def test_no_memory_reads_as_a_cuda_program_expects(used: str) -> None:
    large = torch.ones(2**20, device="cuda")
    line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
    with pytest.raises(torch.OutOfMemoryError, match="bytes are free") as raised:
        torch.empty(2**50, device="cuda")
    assert isinstance(raised.value, torch.cuda.OutOfMemoryError)
    assert "largest tensors" in str(raised.value)
    assert f"{large.nbytes} bytes (1048576,) torch.float32 {used}" in str(raised.value)
    assert f"made at {__file__}:{line} in test_no_memory" in str(raised.value)
    with pytest.raises(RuntimeError, match="negative dimension"):
        torch.empty(-1, device="cuda")


def test_tensors_without_memory_are_not_listed_and_our_own_calls_not_logged(used: str) -> None:
    never_made = torch.empty(2**40, device="meta")
    before = {(each.line, each.api) for each in TorchDevice.sites() if each.file == __file__}
    with pytest.raises(torch.OutOfMemoryError) as raised:
        torch.empty(2**50, device="cuda")
    assert str(never_made.nbytes) not in str(raised.value)
    after = {(each.line, each.api) for each in TorchDevice.sites() if each.file == __file__}
    assert {api for _, api in after - before} <= {"torch.empty"}


def test_a_tensor_that_the_server_had_no_memory_for_is_not_listed(tmp_path: Path) -> None:
    options = ("--device", "cpu", "--max-memory", "64MiB")
    with (
        serving(f"unix://{tmp_path}/server.sock", *options) as url,
        torch_remote.connect(url) as machine,
        redirected("remote"),
        torch.remote.device(machine.devices[0]),
    ):
        kept = torch.ones(2**23, device="cuda")
        refused = 2**23 + 2**20
        with pytest.raises(torch.OutOfMemoryError):
            torch.ones(refused, device="cuda")
        with pytest.raises(torch.OutOfMemoryError, match="of 67108864 bytes are free") as raised:
            torch.empty(2**50, device="cuda")
        assert f"{kept.nbytes} bytes" in str(raised.value)
        assert f"{4 * refused} bytes" not in str(raised.value)
        assert kept.sum().item() == 2**23


def test_no_memory_for_any_operator_is_the_same_error(used: str) -> None:
    huge = torch.ones(1, device="cuda").expand(2**25, 2**25)
    with pytest.raises(torch.OutOfMemoryError):
        huge + 1
    with pytest.raises(torch.OutOfMemoryError):
        huge.clone()


OF_THE_CPU = """
import gc, threading, torch, TorchDevice

def error_of(call):
    try:
        call()
    except RuntimeError as error:
        return type(error).__name__

def limit_to(more):
    now = torch.cuda.memory_allocated()
    torch.cuda.set_per_process_memory_fraction((now + more) / torch.cuda.mem_get_info()[1])

class Cycle:
    def __init__(self):
        self.itself = self
        self.tensor = torch.ones(2**24)

# What only the garbage collector frees can be used again.
gc.disable()
limit_to(2**26 + 2**25)
for _ in range(4):
    Cycle()  # 64 MiB
gc.collect()
print("garbage", torch.ones(1).item())

# So can what was made before the limit was set.
torch.cuda.set_per_process_memory_fraction(1.0)
old = torch.ones(2**26)  # 256 MiB
limit_to(2**25)
print("too much:", error_of(lambda: torch.ones(2**25)))
del old
print("freed", torch.ones(2**25).numel())

# Over the limit, what needs no memory goes on.
x = torch.ones(2**20)
limit_to(-2**20)
print("over it", error_of(lambda: x + 1), x.zero_()[0].item(), torch.empty(0).numel())

# Torch allocates under the lock of a generator, which another thread wants with the GIL.
torch.cuda.set_per_process_memory_fraction(1.0)
weights = torch.rand(2**24)
limit_to(2**23)
failed = []
def sample():
    for _ in range(10):
        failed.append(error_of(lambda: torch.multinomial(weights, 4, replacement=True)))
thread = threading.Thread(target=sample)
thread.start()
while thread.is_alive():
    torch.default_generator.manual_seed(1)
thread.join()
print("threads", set(failed))

TorchDevice.enable("foreign")  # keeps the limit
print("kept", error_of(lambda: torch.ones(2**24)))
TorchDevice.disable()
huge = torch.ones(1).expand(2**25, 2**25)
print("disabled", error_of(lambda: huge + 1), error_of(lambda: x.resize_(2**50)))
print(torch.ones(2**24).numel())
"""


def test_on_the_cpu_the_limit_is_that_of_the_process() -> None:
    printed = assert_runs(OF_THE_CPU, TORCHDEVICE_LOG_LEVEL="ERROR").splitlines()
    assert printed == [
        "garbage 1.0",
        "too much: OutOfMemoryError",
        f"freed {2**25}",
        "over it OutOfMemoryError 0.0 0",
        "threads {'OutOfMemoryError'}",
        "kept OutOfMemoryError",
        "disabled RuntimeError RuntimeError",
        f"{2**24}",
    ]


def test_only_a_call_that_has_made_a_tensor_is_named_as_its_maker(used: str) -> None:
    x = torch.ones(2**20, device="cuda")
    made = _C.maker_of(x)
    assert made is not None and made[0] == __file__
    y = x + 1
    for unchanged in (y.to("cuda"), torch.as_tensor(y), y.cuda()):
        assert _C.maker_of(unchanged) is None  # the addition is not known


def test_control_c_while_memory_is_freed_is_raised(
    used: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(TorchDevice._errors, "_free_memory", interrupt)
    with pytest.raises(KeyboardInterrupt):
        torch.empty(2**50, device="cuda")


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
    with pytest.raises(torch.OutOfMemoryError, match="bytes are free") as raised:
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
