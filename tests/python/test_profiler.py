"""torch.profiler and torch.autograd.profiler show what the device did, on the client's axis."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from helpers import run_python
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity

import torch_remote
from torch_remote import _C

# Not ResourceWarning: what an earlier test left is collected at any time.
pytestmark = pytest.mark.filterwarnings("error::UserWarning")
BOTH = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]
N = 64
DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "profiling.md").read_text()


@pytest.fixture(scope="module")
def matrix() -> torch.Tensor:
    return torch.ones(N, N, device="remote")


def device_events(profile: Any) -> list[Any]:
    return [each for each in profile.events() if each.device_type == DeviceType.PrivateUse1]


def by_key(profile: Any) -> dict[str, Any]:
    averages = profile.key_averages()
    return {each.key: each for each in averages if each.device_type == DeviceType.CPU}


def test_each_operator_has_the_device_time_of_its_calls(matrix: torch.Tensor) -> None:
    with torch.profiler.profile(activities=BOTH) as profile:
        for _ in range(5):
            matrix.mm(matrix)
        matrix.sum().item()
    events = device_events(profile)
    assert [each.name for each in events] == ["mm"] * 5 + ["sum"]
    assert all(each.time_range.end > each.time_range.start for each in events)
    rows = by_key(profile)
    assert rows["aten::mm"].count == 5
    mm = sum(each.time_range.elapsed_us() for each in events[:5])
    assert rows["aten::mm"].self_device_time_total == pytest.approx(mm, rel=0.01)
    assert rows["aten::mm"].self_cpu_time_total > 0
    assert rows["aten::sum"].device_time_total > 0
    assert rows["torch_remote::wait"].count >= 1  # item(), and the end of the profile
    table = profile.key_averages().table(sort_by="self_device_time_total")
    assert "Self REMOTE" in table
    assert "REMOTE time avg" in table


def test_a_replay_is_an_operation_with_the_calls_of_the_graph_inside(matrix: torch.Tensor) -> None:
    graph = torch_remote.Graph()
    with graph:
        (matrix.mm(matrix) + 1).exp()
    graph.replay()
    with torch.profiler.profile(activities=BOTH) as profile:
        graph.replay()
        matrix.mul(2)
        graph.replay()
    names = [each.name for each in device_events(profile)]
    assert names == ["mm", "add", "exp", "mul", "mm", "add", "exp"]
    rows = by_key(profile)
    assert rows["torch_remote::replay"].count == 2
    times = [each.time_range.elapsed_us() for each in device_events(profile)]
    replays = sum(times) - times[3]
    assert rows["torch_remote::replay"].device_time_total == pytest.approx(replays, rel=0.01)


def test_device_times_are_on_the_axis_of_this_process(matrix: torch.Tensor) -> None:
    before = time.time_ns()
    with torch.profiler.profile(activities=BOTH) as profile:
        for _ in range(3):
            matrix.mm(matrix)
    after = time.time_ns()
    kineto = profile.profiler.kineto_results.events()
    begins = [each.start_ns() for each in kineto if each.device_type() == DeviceType.PrivateUse1]
    assert len(begins) == 3
    assert begins == sorted(begins)
    second = 10**9  # more than a busy machine gets wrong, less than two unrelated clocks differ
    assert before - second < begins[0] <= begins[-1] < after + second


def test_calls_of_a_backward_are_linked_to_the_operators_of_the_backward(
    matrix: torch.Tensor,
) -> None:
    weight = matrix.clone().requires_grad_()
    with torch.profiler.profile(activities=BOTH) as profile:
        (matrix @ weight).sum().backward()
    rows = by_key(profile)
    assert len([each for each in device_events(profile) if each.name == "mm"]) == 2
    assert rows["aten::mm"].count == 2
    assert rows["MmBackward0"].device_time_total > 0


def test_record_function_has_the_device_time_of_its_block(matrix: torch.Tensor) -> None:
    with torch.profiler.profile(activities=BOTH) as profile:
        with torch.profiler.record_function("the block"):
            matrix.mm(matrix)
        matrix.sum()
    rows = by_key(profile)
    assert rows["the block"].device_time_total > 0
    assert rows["the block"].device_time_total == pytest.approx(rows["aten::mm"].device_time_total)


def trace_of(profile: Any, folder: Path) -> dict[str, Any]:
    profile.export_chrome_trace(str(folder / "trace.json"))
    trace: dict[str, Any] = json.loads((folder / "trace.json").read_text())
    return trace


def test_the_chrome_trace_has_rows_of_the_device_linked_to_operators(
    matrix: torch.Tensor, tmp_path: Path
) -> None:
    with torch.profiler.profile(activities=BOTH) as profile:
        matrix.mm(matrix)
    events = trace_of(profile, tmp_path)["traceEvents"]
    slices = [each for each in events if each["ph"] == "X"]
    assert all(
        {"name", "ts", "dur", "pid", "tid"} <= each.keys() and each["dur"] >= 0 for each in slices
    )
    (kernel,) = [each for each in slices if each.get("cat") == "kernel"]
    assert (kernel["name"], kernel["pid"], kernel["tid"]) == ("mm", 0, 0)
    assert "test_profiler.py:" in kernel["args"]["line"]
    external = kernel["args"]["External id"]
    launched_by = [
        each["name"]
        for each in slices
        if each.get("cat") == "cpu_op" and each["args"].get("External id") == external
    ]
    assert launched_by == ["aten::mm"]
    # Viewers use the last name of a row.
    names = {
        each["name"]: each["args"] for each in events if each["ph"] == "M" and each["pid"] == 0
    }
    assert names["process_name"]["name"].startswith("remote:0 (")
    assert names["thread_name"]["name"] == "stream 0"


def test_arrows_lead_from_operators_to_their_calls(matrix: torch.Tensor, tmp_path: Path) -> None:
    with torch.profiler.profile(activities=BOTH) as profile:
        matrix.mm(matrix)
        matrix.sum()
    rows = by_key(profile)
    assert rows["torch_remote::send"].count == 2
    assert rows["torch_remote::send"].cpu_time_total == 0  # no time is taken from the operators
    assert rows["torch_remote::send"].device_time_total == 0
    events = trace_of(profile, tmp_path)["traceEvents"]
    arrows = [each for each in events if each.get("cat") == "ac2g"]
    begins = {each["id"]: each for each in arrows if each["ph"] == "s"}
    ends = {each["id"]: each for each in arrows if each["ph"] == "f"}
    assert len(arrows) == 4
    assert begins.keys() == ends.keys()
    names = {(each["pid"], each["tid"], each["ts"]): each["name"] for each in events
             if each["ph"] == "X" and each["cat"] in ("cpu_op", "kernel")}  # fmt: skip
    joined = {
        tuple(names[each["pid"], each["tid"], each["ts"]] for each in (begins[id], ends[id]))
        for id in begins
    }
    assert joined == {("aten::mm", "mm"), ("aten::sum", "sum")}


def test_rows_of_devices_are_below_those_of_the_process(
    matrix: torch.Tensor, tmp_path: Path
) -> None:
    with torch.profiler.profile(activities=BOTH) as profile:
        matrix.mm(matrix)
    events = trace_of(profile, tmp_path)["traceEvents"]
    order = {
        each["pid"]: each["args"]["sort_index"]
        for each in events
        if each["name"] == "process_sort_index"
    }
    assert order[0] > order[os.getpid()]


def test_a_trace_of_a_file_with_an_odd_name_is_valid(matrix: torch.Tensor, tmp_path: Path) -> None:
    code = compile("matrix.mm(matrix)", 'a "b" \\c.py', "exec")
    with torch.profiler.profile(activities=BOTH) as profile:
        exec(code, {"matrix": matrix})
    events = trace_of(profile, tmp_path)["traceEvents"]
    (line,) = [each["args"]["line"] for each in events if each.get("cat") == "kernel"]
    assert line.endswith("a 'b' /c.py:1")


def test_streams_are_rows_of_their_own(matrix: torch.Tensor, tmp_path: Path) -> None:
    stream = torch.Stream(device="remote")
    with torch.profiler.profile(activities=BOTH) as profile:
        matrix.mm(matrix)
        with stream:
            matrix.mm(matrix)
    events = trace_of(profile, tmp_path)["traceEvents"]
    rows = {each["tid"] for each in events if each.get("cat") == "kernel"}
    assert rows == {0, stream.stream_id}


def test_a_schedule_has_a_trace_of_each_cycle(matrix: torch.Tensor) -> None:
    cycles: list[int] = []
    with torch.profiler.profile(
        activities=BOTH,
        schedule=torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=2),
        acc_events=True,
        on_trace_ready=lambda profile: cycles.append(len(device_events(profile))),
    ) as profile:
        for _ in range(8):
            matrix.mm(matrix)
            profile.step()
    assert cycles == [2, 4]  # with those of the cycle before


def test_memory_of_the_device_has_a_column(matrix: torch.Tensor) -> None:
    for activities in (BOTH, BOTH[:1]):
        with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
            made = matrix.mm(matrix)
        rows = by_key(profile)
        assert rows["aten::mm"].self_device_memory_usage == N * N * 4
        assert made.shape == (N, N)


def test_use_device_of_the_autograd_profiler(matrix: torch.Tensor) -> None:
    for options in ({}, {"use_kineto": True}):
        with torch.autograd.profiler.profile(use_device="remote", **options) as profile:
            matrix.mm(matrix)
        assert by_key(profile)["aten::mm"].self_device_time_total > 0
    with torch.autograd.profiler.profile(False, use_device="remote"):
        matrix.mm(matrix)


def test_a_profile_of_this_process_alone_asks_the_server_for_nothing(matrix: torch.Tensor) -> None:
    with (
        torch_remote.count() as counted,
        torch.profiler.profile(activities=BOTH[:1]) as profile,
    ):
        matrix.mm(matrix)
    assert (counted.calls, counted.syncs) == (1, 0)
    assert not device_events(profile)
    assert by_key(profile)["aten::mm"].self_cpu_time_total > 0


def test_a_profile_changes_nothing_of_what_calls_send(matrix: torch.Tensor) -> None:
    def sent() -> dict[str, int]:
        with torch_remote.count() as counted:
            for _ in range(3):
                matrix.mm(matrix)
        return counted.as_dict()

    def fewest() -> dict[str, int]:
        """Without the headers of frames: whether one is cut here is a matter of time."""
        return min((sent() for _ in range(20)), key=lambda counted: counted["bytes_sent"])

    sent()
    before = fewest()
    with torch.profiler.profile(activities=BOTH):
        profiled = fewest()
    after = fewest()
    for name in "calls", "syncs", "bytes_sent":  # the names of storages grow longer with time
        assert before[name] <= profiled[name] <= after[name]


def test_a_server_that_starts_during_the_profile_is_profiled() -> None:
    done = run_python("""
        import torch, torch_remote
        from torch.autograd import DeviceType
        with torch.profiler.profile() as nothing:
            torch.ones(2) + 1
        assert not torch_remote.machines(), "a profile starts no server"
        with torch.profiler.profile() as profile:
            x = torch.ones(3, device="remote")
            x + 1
        names = [e.name for e in profile.events() if e.device_type == DeviceType.PrivateUse1]
        assert names[-1] == "add", names
    """)
    assert done.returncode == 0, done.stderr
    assert "torch_remote" not in done.stderr  # PyTorch's profiler prints to stderr


def test_a_failed_call_does_not_disturb_the_profile(matrix: torch.Tensor) -> None:
    with torch.profiler.profile(activities=BOTH) as profile:
        with pytest.raises(RuntimeError, match="not positive-definite"):
            torch.linalg.cholesky(-matrix)
        matrix.mm(matrix)
    assert device_events(profile)[-1].name == "mm"


def test_a_call_that_fails_late_ends_the_profile_and_is_raised(matrix: torch.Tensor) -> None:
    index = torch.full((1,), N, device="remote")
    with (
        pytest.raises(RuntimeError, match="out of range"),
        torch.profiler.profile(activities=BOTH) as profile,
    ):
        matrix.index_select(0, index)
    assert "aten::index_select" in by_key(profile)
    with torch.profiler.profile(activities=BOTH) as profile:
        matrix.mm(matrix)
    assert len(device_events(profile)) == 1


def read_twice(tensor: torch.Tensor) -> None:
    for _ in range(2):
        tensor.sum().item()


@pytest.mark.parametrize("of", [lambda profile: profile, lambda profile: profile.profiler])
def test_waits_of_a_profile_are_listed_by_line(
    matrix: torch.Tensor, of: Callable[[Any], Any]
) -> None:
    read_twice(matrix)
    with torch.profiler.profile(activities=BOTH) as profile:
        read_twice(matrix)
    (wait,) = torch_remote.waits(of(profile))
    assert wait.line.endswith(f"test_profiler.py:{read_twice.__code__.co_firstlineno + 2}")
    assert wait.count == 2
    assert wait.seconds > 0
    everything = {each.line: each for each in torch_remote.waits()}
    assert everything[wait.line].count >= 4
    assert str(wait).startswith(f"{wait.line} waited 2 times, ")


def test_a_wait_for_a_busy_server_is_a_row_of_the_profile_too(matrix: torch.Tensor) -> None:
    large = torch.ones(1024, 1024, device="remote")
    with torch.profiler.profile(activities=BOTH) as profile:
        for _ in range(4):
            large.mm(large)
        for _ in range(3000):  # more calls than the client sends ahead
            matrix.add_(0)
    waits = sum(each.count for each in torch_remote.waits(profile))
    assert by_key(profile)["torch_remote::wait"].count == waits + 1  # and the end of the profile


def test_what_a_profile_asks_the_server_is_no_wait_of_the_program(matrix: torch.Tensor) -> None:
    def count() -> int:
        return sum(each.count for each in torch_remote.waits())

    before = count()
    with torch.profiler.profile(activities=BOTH):
        matrix.mm(matrix)
        assert count() == before
    assert count() <= before + 1  # PyTorch waits for the device at the end of a profile


def test_the_table_of_waits_is_for_people() -> None:
    table = torch_remote.WaitTable(
        [
            torch_remote.Waits("train.py:41", 12, 0.31),
            torch_remote.Waits("train.py:9", 1, 0.0421),
            torch_remote.Waits("", 1200, 0.0000051),
        ]
    )
    assert str(table).splitlines() == [
        "train.py:41 waited 12 times, 310 ms",
        "train.py:9 waited once, 42.1 ms",
        "an unknown line waited 1,200 times, 5 us",
    ]
    assert str(torch_remote.WaitTable()) == "no line waited for a server"
    shown = re.findall(r"^(\S+) waited (?:once|(\d+) times), ([\d,.]+) ms$", DOCUMENT, re.M)
    assert len(shown) == 2  # the document shows what is printed
    for line, count, time_ms in shown:
        wait = torch_remote.Waits(line, int(count or 1), float(time_ms.replace(",", "")) / 1000)
        assert f"\n{wait}\n" in DOCUMENT
    with pytest.raises(ValueError, match="not a profile that has recorded"):
        torch_remote.waits(torch.autograd.profiler.profile())


def test_what_a_profile_lacks_is_a_warning_at_the_users_line(
    matrix: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_C, "take_profile_notes", lambda: ["the profile lacks something"])
    with (
        pytest.warns(UserWarning, match="the profile lacks something") as warned,
        torch.profiler.profile(activities=BOTH),
    ):
        matrix.mm(matrix)
    assert warned[0].filename == __file__


def test_the_picture_of_the_document_can_be_drawn(tmp_path: Path) -> None:
    tool = Path(__file__).parents[2] / "tools/draw_trace.py"
    trace, picture = tmp_path / "trace.json", tmp_path / "trace.svg"
    for arguments in (["--record", trace], [trace, picture]):
        subprocess.run([sys.executable, tool, *arguments], check=True, timeout=240)
    drawn = ElementTree.parse(picture).getroot()
    texts = [each.text for each in drawn.iter() if each.text]
    assert "remote:0, stream 0" in texts
    assert any(each.startswith("addmm, ") for each in texts)
    assert any(each.startswith("torch_remote::wait, ") for each in texts)


def test_a_torch_without_kineto_is_one_warning(
    matrix: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_C, "has_profiler", lambda: False)
    with (
        pytest.warns(UserWarning, match="cannot profile remote devices"),
        torch.autograd.profiler.profile(use_device="remote") as profile,
    ):
        matrix.mm(matrix)
    assert by_key(profile)["aten::mm"].count == 1
