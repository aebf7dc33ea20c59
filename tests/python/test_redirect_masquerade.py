"""`torch.cuda` while something else is in use: every name is answered, mapped or refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import NoneType, SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import DEADLINE
from redirecting import TorchDevice

from TorchDevice import _masquerade, _table
from TorchDevice._target import Target


def public_names() -> set[str]:
    return {name for name in dir(torch.cuda) if not name.startswith("_")}


def test_the_table_has_every_public_name_of_torch_cuda_once() -> None:
    groups = (_table.KEPT, _table.ANSWERED, set(_table.REFUSED))
    # By other tests, and by torch.cuda itself in some versions.
    imported = {"annotations", "comm", "get_device_module", "memory_history", "Union", "pynvml"}
    assert public_names() - set().union(*groups) - imported == set()
    assert sum(map(len, groups)) == len(set().union(*groups))


def test_targets_have_every_answer(used: str) -> None:
    target = _masquerade.current_target()
    assert isinstance(target, Target)
    missing = [name for name in _table.ANSWERED if not hasattr(target, name)]
    assert missing == []


def test_refused_names_say_what_to_use(used: str) -> None:
    for name in _table.REFUSED:
        if name in public_names():
            with pytest.raises(NotImplementedError, match=name):
                getattr(torch.cuda, name)()
    for name in ("temperature", "power_draw", "utilization"):
        with pytest.raises(NotImplementedError, match="system's own tools"):
            getattr(torch.cuda, name)()


def test_figures_of_nvml_are_the_servers(remote: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_remote import _telemetry

    asked: list[int] = []

    def figures(index: int) -> tuple[dict[str, int], list[tuple[int, int]]]:
        asked.append(index)
        return {"utilization": 12, "temperature": 40, "clock rate": 1700, "memory used": 5}, []

    monkeypatch.setattr(_telemetry._C, "device_telemetry", figures)
    assert torch.cuda.utilization() == 12
    assert torch.cuda.temperature("cuda:0") == 40
    assert torch.cuda.clock_rate(torch.device("cuda", 0)) == 1700
    assert torch.cuda.device_memory_used(0) == 5
    assert "no processes" in torch.cuda.list_gpu_processes()
    assert asked == [0] * 5
    with pytest.raises(NotImplementedError, match="power draw"):
        torch.cuda.power_draw()


# What programs call without arguments, and the type of the answer.
MUST: dict[str, Any] = {
    "is_available": bool,
    "device_count": int,
    "current_device": int,
    "synchronize": NoneType,
    "init": NoneType,
    "is_initialized": bool,
    "empty_cache": NoneType,
    "seed": (int, NoneType),
    "seed_all": NoneType,
    "initial_seed": int,
    "get_rng_state": torch.Tensor,
    "get_rng_state_all": list,
    "current_stream": torch.Stream,
    "default_stream": torch.Stream,
    "memory_allocated": int,
    "max_memory_allocated": int,
    "memory_reserved": int,
    "max_memory_reserved": int,
    "memory_stats": dict,
    "memory_summary": str,
    "mem_get_info": tuple,
    "reset_peak_memory_stats": NoneType,
    "reset_max_memory_allocated": NoneType,
    "reset_accumulated_memory_stats": NoneType,
    "get_device_name": str,
    "get_device_properties": object,
    "get_device_capability": tuple,
    "is_bf16_supported": bool,
    "ipc_collect": NoneType,
    "get_arch_list": list,
    "is_current_stream_capturing": bool,
}


@pytest.mark.parametrize("name", MUST)
def test_what_programs_reach_for_answers_with_a_value_of_its_type(used: str, name: str) -> None:
    answer = getattr(torch.cuda, name)()
    assert isinstance(answer, MUST[name])
    if name == "get_device_properties":
        assert answer.total_memory > 0 and answer.name == torch.cuda.get_device_name()


def test_an_accelerator_in_use_is_available(used: str) -> None:
    assert torch.cuda.is_available() == (used != "cpu")
    assert torch.backends.cuda.is_built() == (used != "cpu")
    assert torch.cuda.device_count() == (0 if used == "cpu" else 1)
    assert torch.cuda.current_device() == 0
    torch.cuda.set_device(0)
    torch.cuda.set_device("cuda:0")
    with torch.cuda.device(0), torch.cuda.device("cuda:0"), torch.cuda.device_of(torch.ones(1)):
        pass


NAMES_OF_ANOTHER = (9, "cuda:9", torch.device("cuda:9"))


@pytest.mark.parametrize("device", NAMES_OF_ANOTHER, ids=str)
def test_an_index_that_does_not_exist_is_the_first_device_everywhere(
    used: str, device: Any
) -> None:
    """As `torch.ones(1, device="cuda:9")` is."""
    made = torch.ones(1, device=device)
    assert str(made.device) == used
    torch.cuda.set_device(device)
    assert torch.cuda.current_device() == 0
    with torch.cuda.device(device):
        assert torch.ones(1, device="cuda").device == made.device
    for name in BY_DEVICE:
        getattr(torch.cuda, name)(device)
        getattr(torch.cuda, name)(device=device)
    assert torch.cuda.get_device_name(device) == torch.cuda.get_device_name(0)
    stream = torch.cuda.Stream(device)
    assert isinstance(stream, torch.cuda.Stream)
    assert isinstance(torch.cuda.current_stream(device), torch.cuda.Stream)
    with torch.cuda.stream(stream):
        assert torch.cuda.current_stream() == stream
    torch.cuda.set_rng_state(torch.cuda.get_rng_state(device), device)
    torch.cuda.set_per_process_memory_fraction(1.0, device)
    assert torch.cuda.can_device_access_peer(0, device) is False


BY_DEVICE = _table.words(
    """
    synchronize get_device_name get_device_capability get_device_properties memory_allocated
    max_memory_allocated memory_reserved memory_stats memory_summary mem_get_info
    reset_peak_memory_stats get_rng_state current_stream default_stream device_memory_used
    get_per_process_memory_fraction
    """
)


def test_under_torchrun_a_rank_is_told_of_a_device_for_each(
    used: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    count = torch.cuda.device_count()
    assert count == (0 if used == "cpu" else 3)
    for index in range(count):
        assert str(torch.ones(1, device=index).device) == used
        torch.cuda.default_generators[index].initial_seed()
    states = torch.cuda.get_rng_state_all()
    assert len(states) == 1
    torch.cuda.set_rng_state_all([*states, torch.zeros_like(states[0])])
    assert torch.equal(torch.cuda.get_rng_state(), states[0])


def test_torch_accelerator_follows_the_rule_of_torch_cuda(
    remote: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    accelerator = torch.accelerator
    for device in NAMES_OF_ANOTHER:
        accelerator.set_device_index(device)
        assert accelerator.current_device_index() == 0
        accelerator.synchronize(device)
        assert str(accelerator.current_stream(device).device) == remote
        assert accelerator.memory_allocated(device) == torch.cuda.memory_allocated(device)
    with accelerator.device_index(9):
        assert str(torch.ones(1, device="cuda").device) == remote
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert accelerator.device_count() == torch.cuda.device_count() == 3
    TorchDevice.disable()
    assert accelerator.device_count() == 1
    with pytest.raises(RuntimeError, match="remote:9 does not exist"):
        accelerator.set_device_index(9)


def test_data_parallel_uses_the_devices_that_exist(used: str) -> None:
    model = torch.nn.DataParallel(torch.nn.Linear(2, 2).cuda(), device_ids=[0, 1, 2])
    assert str(model(torch.ones(4, 2, device="cuda")).device) == used


def test_streams_and_events_order_and_time(used: str) -> None:
    stream = torch.cuda.Stream()
    assert isinstance(stream, torch.cuda.Stream)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    assert isinstance(start, torch.cuda.Event)
    start.record()
    x = torch.ones(200, 200, device="cuda")
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        assert torch.cuda.current_stream() == stream
        y = x @ x
        y.record_stream(stream)
        end.record(stream)
    torch.cuda.current_stream().wait_event(end)
    end.synchronize()
    assert end.query()
    assert start.elapsed_time(end) > 0
    stream.synchronize()
    assert y[0, 0].item() == 200


def test_seeds_and_states_of_random_numbers(used: str) -> None:
    torch.cuda.manual_seed_all(5)
    first = torch.randn(3, device="cuda").tolist()
    torch.cuda.manual_seed(5)
    state = torch.cuda.get_rng_state()
    assert torch.randn(3, device="cuda").tolist() == first
    torch.cuda.set_rng_state(state, "cuda:0")
    assert torch.randn(3, device="cuda").tolist() == first
    assert torch.cuda.initial_seed() == 5


def test_functions_of_the_runtime_answer(used: str) -> None:
    runtime = torch.cuda.cudart()
    assert runtime.cudaDeviceSynchronize() == 0
    assert runtime.cudaMemGetInfo(0)[1] > 0
    assert isinstance(runtime.cudaStreamCreate(), torch.cuda.Stream)
    assert runtime.cudaProfilerStart() == runtime.cudaProfilerStop() == 0


def test_flags_of_backends_can_be_set(used: str) -> None:
    with torch.backends.cudnn.flags(enabled=True, benchmark=True):
        assert torch.backends.cudnn.benchmark
    matmul = torch.backends.cuda.matmul
    tf32, precision = matmul.allow_tf32, matmul.fp32_precision
    matmul.allow_tf32 = True
    assert matmul.allow_tf32
    matmul.allow_tf32, matmul.fp32_precision = tf32, precision
    with torch.backends.cuda.sdp_kernel() if used == "" else torch.no_grad():
        pass


def test_torch_itself_sees_the_truth(remote: str) -> None:
    code = compile("import torch; found = torch.cuda.is_available()", "<torch>", "exec")
    for module, expected in (("torch._inductor.x", False), ("accelerate.utils.imports", False),
                             ("mine", True), ("transformers.models.x", True)):  # fmt: skip
        scope: dict[str, Any] = {"__name__": module}
        exec(code, scope)
        assert scope["found"] is expected, module


DISTRIBUTED = """
import TorchDevice, torch, sys
import torch.distributed as dist
place = f"file://{sys.argv[1]}"
device = torch.device("cuda", 0)
torch.cuda.set_device(device)
dist.init_process_group("nccl", init_method=place, rank=0, world_size=1, device_id=device)
x = torch.ones(3, device="cuda")
dist.all_reduce(x)
group = dist.new_group([0], backend="nccl")
dist.barrier()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1).cuda(), device_ids=[0])
model(x).sum().backward()
for indices, named in (
    (([0], 0), {}),
    (([0],), {"output_device": 0}),
    (([0],), {}),
    ((), {"device_ids": [0], "output_device": 0}),
    (([0], 0, 0, False), {}),
):
    network = torch.nn.Linear(3, 1).cuda()
    other = torch.nn.parallel.DistributedDataParallel(network, *indices, **named)
    assert other(x).shape == (1,) and other.broadcast_buffers is (len(indices) < 4)
print(dist.get_backend(), dist.get_backend(group), x.tolist(), model.module.weight.grad.tolist())
dist.destroy_process_group()
"""


@pytest.mark.parametrize(("target", "engine"), [("", "gloo"), ("local", "remote")])
def test_nccl_is_what_the_target_has(tmp_path: Path, target: str, engine: str) -> None:
    settings = {"TORCHDEVICE_LOG_LEVEL": "WARNING", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", DISTRIBUTED, str(tmp_path / "store")],
        env={**os.environ, **settings, **({"TORCH_REMOTE": target} if target else {})},
        capture_output=True, text=True, timeout=DEADLINE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{engine} {engine} [1.0, 1.0, 1.0] [[1.0, 1.0, 1.0]]\n"
    assert f"uses the backend {engine}" in done.stderr


def test_mps_answers_where_there_is_none(used: str) -> None:
    torch.mps.synchronize()
    torch.mps.empty_cache()
    torch.mps.manual_seed(3)
    assert torch.mps.get_rng_state().dtype == torch.uint8
    assert torch.mps.current_allocated_memory() == pytest.approx(
        torch.cuda.memory_allocated(), rel=0.5, abs=2**20
    )
    assert torch.mps.recommended_max_memory() > 0


def test_a_stubbed_call_warns_once_for_each_line(
    used: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TorchDevice._log, "_warned", set())
    monkeypatch.setattr(TorchDevice.TDLogger.logger, "propagate", True)
    TorchDevice.set_level("WARNING")
    try:
        for _ in range(3):
            torch.cuda.caching_allocator_enable(False)
    finally:
        TorchDevice.set_level("ERROR")
    assert len(caplog.records) == 1
    assert "changes nothing" in caplog.text
    assert __file__ in caplog.text


def test_the_decorator_logs_calls(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    @TorchDevice.auto_log()
    def mine(value: int) -> int:
        return value + 1

    monkeypatch.setattr(TorchDevice.TDLogger.logger, "propagate", True)
    with caplog.at_level("INFO", logger="TorchDevice"):
        assert mine(1) == 2
    assert "mine() is called" in caplog.text


def test_measure_gives_time_memory_and_rate(used: str) -> None:
    from TorchDevice.utils.profiling import measure

    with measure(items=10) as measured:
        torch.ones(100, device="cuda").sum().item()
    assert measured.seconds > 0
    assert measured.items_per_second > 0
    assert measured.peak_memory > 0


class FakeEvent:
    def __init__(self, enable_timing: bool = False) -> None:
        self.enable_timing = enable_timing

    def record(self) -> None:
        pass


def test_mps_answers_for_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    fake = SimpleNamespace(
        current_allocated_memory=lambda: 100, driver_allocated_memory=lambda: 300,
        recommended_max_memory=lambda: 2**33, Event=FakeEvent,
        synchronize=lambda: calls.append("synchronize"),
        empty_cache=lambda: calls.append("empty_cache"),
        manual_seed=lambda seed: calls.append(f"seed {seed}"),
        set_per_process_memory_fraction=lambda fraction: calls.append(f"fraction {fraction}"),
        get_rng_state=lambda: torch.zeros(1, dtype=torch.uint8),
    )  # fmt: skip
    monkeypatch.setattr(torch, "mps", fake)
    monkeypatch.setattr(torch.backends.mps, "get_core_count", lambda: 10, raising=False)
    _masquerade.install("mps")
    try:
        properties = torch.cuda.get_device_properties(0)
        assert (properties.name, properties.major, properties.minor) == (
            "MPS (CUDA Compatible)",
            7,
            0,
        )
        assert (properties.total_memory, properties.multi_processor_count) == (2**33, 10)
        assert torch.cuda.get_device_capability() == (7, 0)
        assert (torch.cuda.is_available(), torch.cuda.device_count()) == (True, 1)
        assert torch.cuda.memory_allocated() == torch.cuda.max_memory_allocated() == 100
        assert torch.cuda.memory_reserved() == 300
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.manual_seed_all(4)
        torch.cuda.set_per_process_memory_fraction(0.5)
        assert isinstance(torch.cuda.Event(enable_timing=True), FakeEvent)
        with torch.cuda.stream(torch.cuda.Stream()) as stream:
            stream.synchronize()
        assert calls == ["synchronize", "empty_cache", "seed 4", "fraction 0.5", "synchronize"]
    finally:
        _masquerade.remove()
