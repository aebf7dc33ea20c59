"""Memory snapshots have CUDA's schema, with the stacks of this process, for PyTorch's viewer."""

from __future__ import annotations

import gc
import inspect
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import assert_runs, serving, wait_until
from torch.cuda import _memory_viz

import torch_remote

MIB = 1 << 20
Snapshot = dict[str, Any]


@pytest.fixture
def recording() -> Iterator[None]:
    torch.remote.memory._record_memory_history()
    yield
    torch.remote.memory._record_memory_history(None)


def block_of(tensor: torch.Tensor, snapshot: Snapshot | None = None) -> dict[str, Any]:
    segments = torch.remote.memory_snapshot() if snapshot is None else snapshot["segments"]
    address = tensor.untyped_storage().data_ptr()
    (found,) = (
        block
        for segment in segments
        for block in segment["blocks"]
        if block["address"] == address and block["state"] == "active_allocated"
    )
    return dict(found)


def events_of(tensor_address: int, snapshot: Snapshot, device: int = 0) -> list[dict[str, Any]]:
    return [e for e in snapshot["device_traces"][device] if e.get("addr") == tensor_address]


def make_it(size: int) -> torch.Tensor:
    return torch.empty(size, device="remote")


def test_without_recording_there_are_segments_and_no_frames() -> None:
    x = make_it(1000)
    block = block_of(x)
    assert block["size"] == block["requested_size"] == 4000
    assert block["frames"] == []
    snapshot = torch.remote.memory._snapshot()
    assert snapshot["device_traces"][0] == []
    assert {"segments", "device_traces", "allocator_settings", "external_annotations"} <= set(
        snapshot
    )


def test_sums_over_segments_are_the_figures_and_asking_waits_once() -> None:
    gc.collect()  # of earlier tests
    kept = [make_it(size) for size in (1, 3, 1000, MIB)]
    with torch_remote.count() as counted:
        segments = torch.remote.memory_snapshot()
    assert counted.syncs == 1
    names = {
        "allocated_bytes.all.current": "allocated_size",
        "active_bytes.all.current": "active_size",
        "requested_bytes.all.current": "requested_size",
        "reserved_bytes.all.current": "total_size",
    }

    def agrees() -> bool:
        segments = [each for each in torch.remote.memory_snapshot() if each["device"] == 0]
        sums = {name: sum(each[key] for each in segments) for name, key in names.items()}
        stats = torch.remote.memory_stats()
        return sums == {name: stats[name] for name in names}

    # A thread of an earlier test may free its last tensor between the two questions.
    assert wait_until(agrees)
    for segment in segments:
        assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
        assert segment["segment_type"] in ("small", "large")
        assert segment["stream"] == 0
    assert len(kept) == 4


@pytest.mark.usefixtures("recording")
def test_frames_are_the_python_stack_from_the_innermost() -> None:
    x = make_it(1000)
    frames = block_of(x)["frames"]
    line = inspect.getsourcelines(make_it)[1] + 1
    assert frames[0] == {"filename": __file__, "line": line, "name": "make_it"}
    assert frames[1]["name"] == "test_frames_are_the_python_stack_from_the_innermost"
    assert len(frames) > 5  # pytest's too


@pytest.mark.usefixtures("recording")
def test_results_of_operators_have_frames_too() -> None:
    module = torch.nn.Linear(8, 8, device="remote")
    y = module(torch.ones(4, 8, device="remote"))
    names = [frame["name"] for frame in block_of(y)["frames"]]
    assert "forward" in names
    assert "test_results_of_operators_have_frames_too" in names


@pytest.mark.usefixtures("recording")
def test_a_gradient_has_the_line_of_its_forward() -> None:
    x = torch.ones(7, 7, device="remote", requires_grad=True)
    line = inspect.currentframe()
    y = (x * x).sum()
    y.backward()
    assert x.grad is not None and line is not None
    frames = block_of(x.grad)["frames"]
    assert any(frame["filename"] == __file__ for frame in frames)


@pytest.mark.usefixtures("recording")
def test_the_trace_has_what_was_made_and_freed_in_order() -> None:
    x = make_it(1000)
    address = x.untyped_storage().data_ptr()
    del x
    snapshot = torch.remote.memory._snapshot()
    events = events_of(address, snapshot)
    assert [event["action"] for event in events] == [
        "segment_alloc",
        "alloc",
        "free_requested",
        "free_completed",
        "segment_free",
    ]
    assert {event["size"] for event in events[1:4]} == {4000}
    times = [event["time_us"] for event in events]
    assert times == sorted(times) and times[0] > 1_700_000_000_000_000
    assert events[1]["frames"][0]["name"] == "make_it"
    assert events[2]["frames"][0]["name"] == "test_the_trace_has_what_was_made_and_freed_in_order"
    assert snapshot["device_traces"][0][-1]["action"] == "snapshot"


@pytest.mark.usefixtures("recording")
def test_a_resize_frees_and_makes() -> None:
    x = make_it(10)
    before = x.untyped_storage().data_ptr()
    x.resize_(5000)
    after = x.untyped_storage().data_ptr()
    snapshot = torch.remote.memory._snapshot()
    assert "free_completed" in [event["action"] for event in events_of(before, snapshot)]
    assert [
        event["size"] for event in events_of(after, snapshot) if event["action"] == "alloc"
    ] == [20000]
    assert block_of(x, snapshot)["size"] == 20000


def test_max_entries_keeps_the_last_ones_and_skip_actions_skips() -> None:
    torch.remote.memory._record_memory_history(
        max_entries=4, skip_actions=["segment_alloc", "segment_free", "free_requested", "snapshot"]
    )
    try:
        kept = [make_it(size) for size in range(1, 11)]
        events = torch.remote.memory._snapshot()["device_traces"][0]
        assert [(event["action"], event["size"]) for event in events] == [
            ("alloc", 4 * size) for size in (7, 8, 9, 10)
        ]
        del kept
    finally:
        torch.remote.memory._record_memory_history(enabled=None)


@pytest.mark.parametrize(
    ("context", "in_blocks", "in_allocs", "in_frees"),
    [
        (None, False, False, False),
        ("state", True, False, False),
        ("alloc", True, True, False),
        ("all", True, True, True),
    ],
)
def test_context_says_what_has_stacks(
    context: str | None, in_blocks: bool, in_allocs: bool, in_frees: bool
) -> None:
    torch.remote.memory._record_memory_history("all", context=context, stacks="python")
    try:
        x, y = make_it(10), make_it(10)
        address = y.untyped_storage().data_ptr()
        del y
        snapshot = torch.remote.memory._snapshot()
        assert bool(block_of(x, snapshot)["frames"]) == in_blocks
        events = {event["action"]: event for event in events_of(address, snapshot)}
        assert ("frames" in events["alloc"]) == in_allocs
        assert ("frames" in events["free_completed"]) == in_frees
    finally:
        torch.remote.memory._record_memory_history(None)


def test_state_keeps_the_stacks_of_live_memory_only() -> None:
    torch.remote.memory._record_memory_history("state")
    try:
        x = make_it(10)
        snapshot = torch.remote.memory._snapshot()
        assert block_of(x, snapshot)["frames"]
        assert len(snapshot["device_traces"][0]) <= 1
    finally:
        torch.remote.memory._record_memory_history(None)
    assert block_of(x)["frames"]  # as with CUDA: what was noted of live memory stays
    assert torch.remote.memory._snapshot()["device_traces"][0] == []


def test_wrong_options_are_refused_with_cudas_words() -> None:
    record = torch.remote.memory._record_memory_history
    with pytest.raises(RuntimeError, match="expected state to be 'state', 'all', or None"):
        record("some")
    with pytest.raises(RuntimeError, match="expected context to be 'state', 'alloc', 'all', or"):
        record("all", context="some")
    with pytest.raises(RuntimeError, match="expected stacks to be 'python', or 'all'"):
        record("all", stacks="some")


@pytest.mark.usefixtures("recording")
def test_an_allocation_is_found_by_its_address() -> None:
    x = make_it(10)
    frames = torch.remote.memory._allocation_traceback(x.untyped_storage().data_ptr())
    assert frames is not None and frames[0]["name"] == "make_it"
    assert torch.remote.memory._allocation_traceback(12345) is None


@pytest.mark.usefixtures("recording")
def test_pytorchs_viewer_takes_a_snapshot(tmp_path: Path) -> None:
    kept = [make_it(6 * MIB), make_it(1)]
    make_it(100)
    torch.remote.memory._dump_snapshot(str(tmp_path / "snapshot.pickle"))
    data = pickle.loads((tmp_path / "snapshot.pickle").read_bytes())
    summary = _memory_viz.segsum(data)
    assert "segments: " in summary and "[ab]" not in summary and "24.0MiB" in summary
    listing = _memory_viz.trace(data)
    assert "Device 0" in listing and "cudaMalloc" in listing and "del " in listing
    for plot in (
        _memory_viz.trace_plot(data),
        _memory_viz.trace_plot(data, plot_segments=True),
        _memory_viz.segment_plot(data),
    ):
        assert "snapshot.pickle" in plot
    for graph in (_memory_viz.segments, _memory_viz.memory):
        lines = graph(data, format_flamegraph=lambda text: text)
        assert "make_it" in lines and "active_allocated" in lines
    before, after = data["segments"], torch.remote.memory_snapshot()
    assert isinstance(_memory_viz.compare(before, after, lambda text: text), str)
    assert kept[0].shape == (6 * MIB,)


@pytest.mark.usefixtures("recording")
def test_the_viewers_arithmetic_finds_the_segment_of_each_block() -> None:
    # It computes with doubles, whose distance at our addresses is 256.
    kept = [make_it(size) for size in (1, 2, 31, 32, 33, 129)]
    for segment in torch.remote.memory_snapshot():
        assert float(segment["address"]) < float(segment["address"]) + segment["total_size"]
        assert int(float(segment["address"])) == segment["address"]
    assert len(kept) == 6


@pytest.mark.usefixtures("recording")
def test_each_device_has_its_own(tmp_path: Path) -> None:
    with (
        serving(f"unix://{tmp_path}/server.sock", "--device", "cpu", "--devices", "2") as url,
        torch_remote.connect(url) as machine,
    ):
        one, two = machine.devices
        assert one.index is not None and two.index is not None
        x = torch.ones(MIB, device=two)
        snapshot = torch.remote.memory._snapshot()
        address = x.untyped_storage().data_ptr()
        assert events_of(address, snapshot, two.index)
        others = [event["action"] for event in snapshot["device_traces"][one.index]]
        assert others == ["snapshot"]
        (segment,) = (s for s in snapshot["segments"] if s["device"] == two.index)
        assert segment["address"] == address
        index = two.index
    # The machine has ended, and its index may be used again: nothing of it is shown.
    snapshot = torch.remote.memory._snapshot()
    assert all(segment["device"] != index for segment in snapshot["segments"])


@pytest.mark.usefixtures("recording")
def test_threads_are_recorded_with_their_own_stacks() -> None:
    made: list[torch.Tensor] = []

    def in_a_thread() -> None:
        made.extend(make_it(16) for _ in range(200))

    threads = [threading.Thread(target=in_a_thread) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    snapshot = torch.remote.memory._snapshot()
    for tensor in made[::50]:
        assert "in_a_thread" in [frame["name"] for frame in block_of(tensor, snapshot)["frames"]]


@pytest.mark.usefixtures("recording")
def test_out_of_memory_is_in_the_trace(tmp_path: Path) -> None:
    limit = ("--device", "cpu", "--max-memory", "64MiB")
    with (
        serving(f"unix://{tmp_path}/server.sock", *limit) as url,
        torch_remote.connect(url) as machine,
    ):
        device = machine.devices[0]
        assert device.index is not None
        kept = torch.ones(4 * MIB, device=device)
        with pytest.raises(torch.OutOfMemoryError):
            torch.ones(32 * MIB, device=device).sum().item()
        snapshot = torch.remote.memory._snapshot()  # the usual place to take one
        (event,) = (e for e in snapshot["device_traces"][device.index] if e["action"] == "oom")
        assert event["size"] == 128 * MIB
        assert event["device_free"] == 48 * MIB
        assert event["frames"][0]["filename"] == __file__
        assert "raise OutOfMemoryError # 128.0MiB requested, 48.0MiB free" in _memory_viz.trace(
            snapshot
        )
        assert kept.sum().item() == 4 * MIB


def test_without_a_machine_nothing_is_started() -> None:
    assert_runs("""
        import torch, torch_remote
        torch.remote.memory._record_memory_history()
        assert torch.remote.memory_snapshot() == []
        assert torch.remote.memory._snapshot()["segments"] == []
        assert not torch.remote.is_initialized()
        x = torch.ones(3, device="remote")
        assert torch.remote.memory_snapshot()[0]["blocks"][0]["frames"]
    """)


def test_torch_cudas_older_options_are_understood() -> None:
    torch.remote.memory._record_memory_history(True, trace_alloc_max_entries=100)
    try:
        x = make_it(10)
        snapshot = torch.remote.memory._snapshot()
        assert block_of(x, snapshot)["frames"] and snapshot["device_traces"][0]
    finally:
        torch.remote.memory._record_memory_history(False)
    assert torch.remote.memory._snapshot()["device_traces"][0] == []
