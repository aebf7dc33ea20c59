"""`torch.cuda` while something else is in use: every name is answered, mapped or refused."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
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


MUST = [
    "is_available",
    "device_count",
    "current_device",
    "synchronize",
    "init",
    "is_initialized",
    "empty_cache",
    "seed",
    "seed_all",
    "initial_seed",
    "get_rng_state",
    "get_rng_state_all",
    "current_stream",
    "default_stream",
    "memory_allocated",
    "max_memory_allocated",
    "memory_reserved",
    "max_memory_reserved",
    "memory_stats",
    "memory_summary",
    "mem_get_info",
    "reset_peak_memory_stats",
    "reset_max_memory_allocated",
    "reset_accumulated_memory_stats",
    "get_device_name",
    "get_device_properties",
    "get_device_capability",
    "is_bf16_supported",
    "ipc_collect",
    "get_arch_list",
    "is_current_stream_capturing",
]


@pytest.mark.parametrize("name", MUST)
def test_what_programs_reach_for_answers(used: str, name: str) -> None:
    getattr(torch.cuda, name)()


def test_an_accelerator_in_use_is_available(used: str) -> None:
    assert torch.cuda.is_available() == (used != "cpu")
    assert torch.backends.cuda.is_built() == (used != "cpu")
    assert torch.cuda.device_count() == (0 if used == "cpu" else 1)
    assert torch.cuda.current_device() == 0
    torch.cuda.set_device(0)
    torch.cuda.set_device("cuda:0")
    with torch.cuda.device(0), torch.cuda.device("cuda:0"), torch.cuda.device_of(torch.ones(1)):
        pass
    for use in (torch.cuda.set_device, torch.cuda.device, torch.cuda.get_device_properties):
        if (used, use) != ("cpu", torch.cuda.device):  # which chooses nothing there
            with pytest.raises(torch.AcceleratorError, match="invalid device ordinal"):
                use(9)


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


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_amp_means_the_device_in_use(used: str) -> None:
    x = torch.ones(4, 4, device="cuda")
    for mode in (torch.autocast("cuda"), torch.amp.autocast("cuda"), torch.cuda.amp.autocast()):
        with mode:
            assert (x @ x).dtype == torch.float16
    with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16
        assert torch.is_autocast_enabled("cuda")
        assert torch.is_autocast_enabled()
        assert torch.get_autocast_dtype("cuda") == torch.bfloat16
        assert torch.get_autocast_dtype(device_type="cuda") == torch.bfloat16
        assert torch.is_autocast_enabled(device_type="cuda")
        torch.set_autocast_enabled(enabled=False)
        assert not torch.is_autocast_enabled("cuda")
        torch.set_autocast_enabled(device_type="cuda", enabled=True)
        torch.set_autocast_dtype(device_type="cuda", dtype=torch.float16)
        assert (x @ x).dtype == torch.float16
    assert not torch.is_autocast_enabled("cuda")
    assert torch.amp.is_autocast_available("cuda")
    for scaler in (torch.amp.GradScaler("cuda"), torch.cuda.amp.GradScaler(), torch.GradScaler()):
        assert scaler.is_enabled()
        module = torch.nn.Linear(2, 1).cuda()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        scaler.scale(module(torch.ones(1, 2, device="cuda")).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    class Twice(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        @torch.cuda.amp.custom_fwd
        def forward(context: Any, value: torch.Tensor) -> torch.Tensor:
            return value * 2

        @staticmethod
        @torch.cuda.amp.custom_bwd
        def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * 2

    y = x.clone().requires_grad_()
    Twice.apply(y).sum().backward()
    assert y.grad.unique().tolist() == [2.0]


def test_a_graph_replays_what_its_block_did(used: str) -> None:
    source = torch.zeros(3, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        assert torch.cuda.is_current_stream_capturing()
        result = (source * 2 + 1).relu()
        counter = result.sum()
        turned = (source.reshape(1, 3) + 1).t_()
    assert not torch.cuda.is_current_stream_capturing()
    source.copy_(torch.tensor([1.0, 2.0, -3.0]))
    graph.replay()
    assert result.tolist() == [3.0, 5.0, 0.0]
    assert counter.item() == 8.0
    assert turned.tolist() == [[2.0], [3.0], [-2.0]]


def test_a_graph_of_a_training_step_trains(used: str) -> None:
    module = torch.nn.Linear(2, 1, bias=False).cuda()
    torch.nn.init.ones_(module.weight)
    inputs = torch.ones(1, 2, device="cuda")
    optimizer = torch.optim.SGD(module.parameters(), lr=0.25)
    module(inputs).sum().backward()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.zero_grad(set_to_none=False)
        module(inputs).sum().backward()
        optimizer.step()
    assert module.weight.tolist() == [[0.75, 0.75]]
    graph.replay()
    assert module.weight.tolist() == [[0.5, 0.5]]
    twice = torch.cuda.make_graphed_callables(module, (inputs,))
    assert twice(inputs).item() == 1.0


def test_ranges_of_nvtx_are_ranges_of_the_profiler(used: str) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        torch.cuda.nvtx.range_push("outer part")
        with torch.cuda.nvtx.range("inner part"):
            torch.ones(1, device="cuda").add_(1)
        torch.cuda.nvtx.range_pop()
        torch.cuda.nvtx.mark("here")
    assert {"outer part", "inner part", "here"} <= {event.name for event in profile.events()}
    torch.cuda.nvtx.range_push("of this thread")
    other = threading.Thread(target=torch.cuda.nvtx.range_pop)
    other.start()
    other.join()
    assert torch.cuda.nvtx.range_push("inside") == 1
    assert [torch.cuda.nvtx.range_pop(), torch.cuda.nvtx.range_pop()] == [1, 0]


@pytest.mark.filterwarnings("error::UserWarning")
def test_a_profile_of_cuda_is_one_of_the_remote_device(remote: str) -> None:
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    matrix = torch.ones(8, 8, device="cuda")
    with torch.profiler.profile(activities=kinds) as profile:
        matrix.mm(matrix)
    (row,) = [each for each in profile.key_averages() if each.key == "aten::mm"]
    assert row.self_device_time_total > 0


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
    assert torch.mps.device_count() == torch.cuda.device_count()


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


@pytest.mark.parametrize("arguments", [{}, {"devices": [0]}, {"device_type": "cuda"}], ids=str)
def test_fork_rng_restores_the_generators(used: str, arguments: dict[str, Any]) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3).tolist(), torch.rand(3, device="cuda").tolist()
    torch.manual_seed(5)
    with torch.random.fork_rng(**arguments):
        torch.manual_seed(6)
        torch.rand(3, device="cuda")
    assert (torch.rand(3).tolist(), torch.rand(3, device="cuda").tolist()) == expected
    assert torch.get_device_module("cuda") is torch.get_device_module(used)
