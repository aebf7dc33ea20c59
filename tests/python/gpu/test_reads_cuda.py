"""Large values of a GPU, which the server sends in pieces: Note [Reads from a device]."""

from __future__ import annotations

import threading

import torch

import torch_remote

SIZES = [(1 << 20) - 1, 1 << 20, (4 << 20) + 3, (100 << 20) + 12]  # bytes


def value(size: int) -> torch.Tensor:
    return torch.arange(size, device="remote").remainder(251).to(torch.uint8)


def expected(size: int) -> torch.Tensor:
    return torch.arange(size).remainder(251).to(torch.uint8)


def test_values_of_any_number_of_pieces_are_exact() -> None:
    for size in SIZES:
        assert torch.equal(value(size).cpu(), expected(size))
        into = torch.empty(size, dtype=torch.uint8)
        assert torch.equal(into.copy_(value(size)), expected(size))


def test_a_view_that_is_not_contiguous_arrives_in_its_order() -> None:
    there = value(64 << 20).view(8192, -1)
    here = expected(64 << 20).view(8192, -1)
    assert torch.equal(there.t().cpu(), here.t())
    assert torch.equal(there[:, ::2].cpu(), here[:, ::2])


def test_a_read_on_its_way_does_not_see_what_comes_after_it() -> None:
    there = value(256 << 20)
    reads = []
    for _ in range(3):
        reads.append(torch_remote.read(there))
        there.add_(1)
    for turn, read in enumerate(reads):
        assert torch.equal(read.result(), expected(256 << 20) + turn)
    freed = torch_remote.read(there)
    del there
    torch.zeros(256 << 20, dtype=torch.uint8, device="remote")
    assert torch.equal(freed.result(), expected(256 << 20) + 3)


def test_a_large_read_is_after_the_work_of_its_stream() -> None:
    side = torch.remote.Stream()
    a = torch.rand(4096, 4096, device="remote")
    torch.remote.synchronize()
    with torch.remote.stream(side):
        b = a
        for _ in range(50):
            b = (b @ a).sigmoid()
        here = b.cpu()
    torch.remote.synchronize()
    assert torch.equal(here, b.cpu())


def test_threads_read_at_once() -> None:
    wrong = []

    def run(number: int) -> None:
        for _ in range(5):
            if not torch.equal((value(20 << 20) + number).cpu(), expected(20 << 20) + number):
                wrong.append(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_empty_cache_during_reads_loses_nothing() -> None:
    there = value(100 << 20)
    read = torch_remote.read(there)
    torch.remote.empty_cache()
    assert torch.equal(read.result(), expected(100 << 20))
    torch.remote.empty_cache()
    assert torch.equal(there.cpu(), expected(100 << 20))
