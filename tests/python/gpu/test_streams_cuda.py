"""Streams of a CUDA server: two overlap in time, a read waits for its own stream only."""

from __future__ import annotations

import time

import torch

import torch_remote

LENGTH = 20_000_000  # one row: a kernel that uses one of the many processors


def slow(rows: torch.Tensor) -> torch.Tensor:
    return torch.kthvalue(rows, LENGTH // 2, 1).values


def milliseconds(streams: list[torch.Stream]) -> float:
    """How long one slow kernel on each of the streams takes together, by the server's clock."""
    rows = [torch.rand(1, LENGTH, device="remote") for _ in streams]
    torch.remote.synchronize()
    begin, end = (torch.remote.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for stream, row in zip(streams, rows, strict=True):
        stream.wait_event(begin)
        with torch.remote.stream(stream):
            slow(row)
        torch.remote.current_stream().wait_stream(stream)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def test_two_streams_overlap() -> None:
    one, two = torch.remote.Stream(), torch.remote.Stream()
    milliseconds([one, two])
    alone = min(milliseconds([one]) for _ in range(3))
    same = min(milliseconds([one, one]) for _ in range(3))
    both = min(milliseconds([one, two]) for _ in range(3))
    assert same > 1.7 * alone
    assert both < 1.4 * alone


def test_a_read_waits_for_its_own_stream_only() -> None:
    side = torch.remote.Stream()
    rows = torch.rand(1, LENGTH, device="remote")
    small = torch.ones(3, device="remote")
    with torch.remote.stream(side):
        slow(rows)
    small.sum().item()  # the first read gets pinned memory, for which CUDA waits
    torch.remote.synchronize()
    with torch.remote.stream(side):
        for _ in range(20):
            slow(rows)
        event = torch.remote.Event()
        event.record()
    begin = time.perf_counter()
    assert small.sum().item() == 3
    read = time.perf_counter() - begin
    assert not event.query()
    event.synchronize()
    assert time.perf_counter() - begin > 2 * read


def test_values_do_not_depend_on_the_streams() -> None:
    side = torch.remote.Stream()
    total = torch.zeros((), device="remote", dtype=torch.float64)
    for step in range(50):
        batch = torch.full((1_000_000,), float(step)).pin_memory()
        with torch.remote.stream(side):
            uploaded = batch.to("remote", non_blocking=True)
        torch.remote.current_stream().wait_stream(side)
        uploaded.record_stream(torch.remote.current_stream())
        total += uploaded.double().sum()
    assert total.item() == sum(range(50)) * 1_000_000.0


def test_autograd_on_a_side_stream() -> None:
    side = torch.remote.Stream()
    weight = torch.ones(1000, 1000, device="remote", requires_grad=True)
    side.wait_stream(torch.remote.current_stream())
    with torch.remote.stream(side):
        loss = (weight @ weight).sum()
    loss.backward()
    torch.remote.synchronize()
    assert weight.grad is not None
    assert bool((weight.grad == 2000).all())


def test_memory_figures_are_those_of_the_gpu() -> None:
    torch.remote.reset_peak_memory_stats()
    before = torch.remote.memory_allocated()
    x = torch.empty(1 << 20, device="remote")
    assert torch.remote.memory_allocated() == before + x.nbytes
    free, total = torch.remote.mem_get_info()
    assert 0 < free < total == torch.remote.get_device_properties().total_memory
    assert torch.remote.memory_reserved() >= torch.remote.memory_allocated()
    assert torch_remote.stats().syncs > 0


def test_out_of_memory_is_raised_by_the_call() -> None:
    held = []
    size = 8 << 30
    failed = False
    for _ in range(40):
        try:
            held.append(torch.ones(size, dtype=torch.uint8, device="remote"))
        except torch.OutOfMemoryError:
            failed = True
            break
    assert failed
    held.clear()
    torch.remote.empty_cache()
    assert torch.ones(2, device="remote").sum().item() == 2
