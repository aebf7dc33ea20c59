"""Streams and events: CUDA's interface; on a CPU server everything runs in order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from failures import held_server
from helpers import DEADLINE, assert_runs, serving
from sent import payload

import torch_remote


def work(device: str = "remote") -> torch.Tensor:
    """A call that keeps the server busy for a while."""
    x = torch.ones(1200, 1200, device=device, dtype=torch.float64)
    for _ in range(3):
        x = x @ x
    return x


def test_streams_are_different_and_current_ones_are_each_threads_own() -> None:
    first, second = torch.remote.Stream(), torch.remote.Stream(priority=-1)
    default = torch.remote.default_stream()
    assert len({first, second, default}) == 3
    assert torch.remote.current_stream() == default
    with torch.remote.stream(first):
        assert torch.remote.current_stream() == first
        seen: list[torch.Stream] = []
        thread = threading.Thread(target=lambda: seen.append(torch.remote.current_stream()))
        thread.start()
        thread.join()
        assert seen == [default]
        with torch.remote.stream(second):
            assert torch.remote.current_stream() == second
        assert torch.remote.current_stream() == first
    assert torch.remote.current_stream() == default


def test_values_are_right_whatever_streams_the_calls_go_to() -> None:
    side = torch.remote.Stream()
    x = torch.arange(4.0, device="remote")
    side.wait_stream(torch.remote.current_stream())
    with torch.remote.stream(side):
        y = x * 2
        uploaded = torch.arange(100_000.0).to("remote")
        assert y.tolist() == [0, 2, 4, 6]
    torch.remote.current_stream().wait_stream(side)
    y.record_stream(torch.remote.current_stream())
    assert (y + 1).tolist() == [1, 3, 5, 7]
    assert uploaded.double().sum().item() == sum(range(100_000))


def test_backward_on_a_side_stream_gives_the_gradients_of_the_default_one() -> None:
    def gradient(stream: torch.Stream | None) -> list[float]:
        weight = torch.ones(3, device="remote", requires_grad=True)
        with torch.remote.stream(stream):
            loss = (weight * torch.arange(3.0, device="remote")).square().sum()
        loss.backward()
        assert weight.grad is not None
        return weight.grad.tolist()

    assert gradient(torch.remote.Stream()) == gradient(None)


def test_an_event_is_recorded_waited_for_and_timed_by_the_server() -> None:
    start, end = (torch.remote.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    end.synchronize()
    assert start.query()
    assert end.query()
    began = time.perf_counter()
    elapsed = start.elapsed_time(end)
    assert 0 < elapsed < 60_000
    assert time.perf_counter() - began < 10
    untimed = torch.remote.Event()
    untimed.record()
    with pytest.raises(ValueError, match="enable_timing"):
        start.elapsed_time(untimed)


def test_a_query_does_not_wait_for_the_work() -> None:
    torch.remote.synchronize()
    event = torch.remote.Event()
    with held_server(), torch_remote.count() as counted:
        torch.ones(2, device="remote").add_(1)
        event.record()
        done = event.query()
        stream_done = torch.remote.current_stream().query()
    assert counted.syncs == 0
    assert not done
    assert not stream_done
    deadline = time.monotonic() + DEADLINE
    while not event.query():
        assert time.monotonic() < deadline
        time.sleep(0.005)
    torch.remote.current_stream().synchronize()
    assert torch.remote.current_stream().query()


def test_an_event_that_was_never_recorded_has_happened() -> None:
    event = torch.remote.Event()
    assert event.query()
    event.synchronize()


def test_an_event_of_one_device_is_waited_for_on_another(tmp_path: Path) -> None:
    listen = f"unix://{tmp_path}/server.sock"
    with (
        serving(listen, "--device", "cpu", "--devices", "2") as url,
        torch_remote.connect(url) as machine,
    ):
        one, two = machine.devices
        event = torch.Event(device=one)
        event.record(torch.remote.current_stream(one))
        for stream in (torch.remote.current_stream(two), torch.remote.current_stream("remote:0")):
            stream.wait_event(event)  # of the same server, and of another
        assert torch.ones(2, device=two).sum().item() == 2
        event.synchronize()


def test_synchronizing_a_stream_raises_a_failure() -> None:
    source = torch.ones(1777, device="remote")
    torch.gather(source, 0, torch.tensor([10**6], device="remote"))
    with pytest.raises(torch_remote.RemoteError, match="aten::gather"):
        torch.remote.current_stream().synchronize()


def test_calls_cost_no_further_bytes_where_streams_are_not_used() -> None:
    x = torch.ones(3, device="remote")
    x + 1
    assert payload(lambda: [x + 1 for _ in range(100)]) < 100 * 30


def test_a_large_upload_may_be_the_first_thing_on_a_stream() -> None:
    buffer = torch.zeros(1 << 20, device="remote")
    torch.remote.synchronize()
    values = torch.arange(float(1 << 20))
    with torch.remote.stream(torch.remote.Stream()):
        buffer.copy_(values)
        assert buffer.sum().item() == values.sum().item()


@pytest.mark.parametrize("make", [torch.Stream, lambda device: torch.remote.Stream(device=device)])
@pytest.mark.parametrize("device", ["remote", torch.device("remote")])
def test_a_stream_of_a_device_without_an_index_is_one_of_the_current_device(
    make: Callable[[object], torch.Stream], device: object
) -> None:
    stream = make(device)
    assert stream.device == torch.device("remote", torch.remote.current_device())
    with stream:
        assert torch.remote.current_stream() == stream
        assert torch.accelerator.current_stream() == stream
    first, last = (torch.remote.Event(enable_timing=True) for _ in range(2))
    first.record(stream)
    last.record(stream)
    stream.synchronize()
    assert first.elapsed_time(last) >= 0


def test_an_event_may_be_the_first_use_of_the_device() -> None:
    assert_runs("""
        import torch, torch_remote
        first, last = (torch.remote.Event(enable_timing=True) for _ in range(2))
        first.record()
        x = torch.ones(3, device="remote") + 1
        last.record()
        torch.remote.synchronize()
        assert first.elapsed_time(last) > 0
    """)


def test_streams_and_events_take_the_arguments_of_cuda() -> None:
    high = torch.remote.Stream(priority=-1)
    assert high.priority == -1
    assert torch.remote.Stream("remote", 0).priority == 0
    assert torch.remote.Stream(device=-1, priority=3).priority == 0
    assert torch.remote.Stream.priority_range() == (0, -1)
    assert torch.remote.current_stream().priority == 0
    with high:
        assert torch.remote.current_stream().priority == -1
    for event in (torch.remote.Event(True, True), torch.remote.Event(external=True)):
        assert isinstance(event, torch.Event)
        assert isinstance(high.record_event(event), torch.remote.Event)
        event.synchronize()


def test_a_stream_that_no_device_has_is_refused_and_the_session_goes_on() -> None:
    x = torch.ones(2, device="remote")
    kind = torch.remote.current_stream().device_type
    for number in (1000, 65, 256, -3):
        wrong = torch.Stream(stream_id=number, device_index=0, device_type=kind)
        uses: list[Callable[[], object]] = [
            wrong.synchronize,
            wrong.query,
            wrong.record_event,
            lambda wrong=wrong: torch.accelerator.set_stream(wrong),
            lambda wrong=wrong: wrong.wait_stream(torch.remote.current_stream()),
            lambda wrong=wrong: x.record_stream(wrong),
        ]
        for use in uses:
            with pytest.raises(RuntimeError, match="no stream with the id"):
                use()
    assert x.sum().item() == 2


def test_too_many_events_are_refused_and_the_session_goes_on() -> None:
    events = [torch.remote.Event() for _ in range((1 << 16) + 1)]
    with pytest.raises(RuntimeError, match="recorded events"):
        for event in events:
            event.record()
    assert torch.ones(2, device="remote").sum().item() == 2
    events.clear()
    torch.remote.Event().record()
    torch.remote.synchronize()
