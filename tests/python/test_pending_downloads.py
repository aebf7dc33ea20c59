"""Pending downloads: copies to pinned memory with non_blocking=True."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from failures import bad_gather
from helpers import assert_runs, assert_same, run_python, wait_until

import torch_remote

COUNT = 40
# Small ones are answered in a message, large ones on a lane.
SIZES = [1, 5, 100, 16_384, 16_385, 300_000, 3]


def tensors(count: int = COUNT) -> list[torch.Tensor]:
    return [torch.full((8,), float(i), device="remote") for i in range(count)]


def test_a_download_into_pinned_memory_waits_for_nothing(
    sync_count: Callable[[Callable[[], object]], int],
) -> None:
    sources = tensors()
    pinned = [torch.empty(8).pin_memory() for _ in sources]
    results: list[torch.Tensor] = []
    assert sync_count(lambda: results.extend(t.to("cpu", non_blocking=True) for t in sources)) == 0
    copies = zip(pinned, sources, strict=True)
    assert sync_count(lambda: [p.copy_(t, non_blocking=True) for p, t in copies]) == 0
    assert sync_count(torch.remote.synchronize) == 1
    expected = [torch.full((8,), float(i)) for i in range(COUNT)]
    assert_same(results, expected)
    assert_same(pinned, expected)
    assert all(result.is_pinned() for result in results)


@pytest.mark.parametrize(
    "wait",
    [
        torch_remote.synchronize,
        lambda: torch.accelerator.synchronize(),
        lambda: torch.remote.current_stream().synchronize(),
        lambda: torch.remote.current_stream().record_event().synchronize(),
        lambda: wait_until(torch.remote.current_stream().query),
    ],
    ids=["all", "accelerator", "stream", "event", "query"],
)
def test_every_wait_for_the_device_waits_for_downloads(wait: Callable[[], object]) -> None:
    sources = [torch.randn(size) for size in SIZES]
    results = [t.to("remote").to("cpu", non_blocking=True) for t in sources]
    wait()
    assert_same(results, sources)


def test_pageable_memory_and_conversions_are_there_at_once(
    sync_count: Callable[[Callable[[], object]], int],
) -> None:
    source = torch.arange(1000.0)
    there = source.to("remote")
    assert_same(torch.empty(1000).copy_(there, non_blocking=True), source)
    assert_same(there.to("cpu", torch.int32, non_blocking=True), source.int())
    into = torch.zeros(2000).pin_memory()
    into[::2].copy_(there, non_blocking=True)
    assert_same(into[::2], source)
    assert sync_count(there.cpu) == 1


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": lambda x: x.transpose(0, 2),
    "permuted": lambda x: x.permute(2, 0, 1),
    "strided": lambda x: x[1::2, ::3],
    "expanded": lambda x: x[:1].expand(5, *x.shape[1:]),
    "one": lambda x: x[:, :1, 2:3].transpose(0, 1),
    "scalar": lambda x: x[1, 2, 3],
    "conjugate": lambda x: torch.complex(x, x + 1).conj(),
    "negative": lambda x: torch.complex(x, x + 1).conj().imag,
    "empty": lambda x: x[:0],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_views_of_any_layout_arrive_later(layout: str) -> None:
    cube = torch.arange(5.0 * 6 * 7).reshape(5, 6, 7)
    view, expected = LAYOUTS[layout](cube.to("remote")), LAYOUTS[layout](cube)
    result = view.to("cpu", non_blocking=True)
    other = torch.empty(expected.shape, dtype=expected.dtype).pin_memory()
    other.copy_(view, non_blocking=True)
    torch.remote.synchronize()
    assert_same([result, other], [expected, expected])
    assert result.stride() == view.cpu().stride()


def test_a_download_broadcasts_into_pinned_memory() -> None:
    into = torch.empty(3, 8).t().contiguous().t().pin_memory()
    into.copy_(torch.arange(8.0, device="remote"), non_blocking=True)
    torch.remote.synchronize()
    assert_same(into, torch.arange(8.0).expand(3, 8).contiguous())


def test_views_of_one_storage_arrive_in_their_places() -> None:
    base = torch.arange(200_000.0)
    there, into = base.to("remote"), torch.zeros(200_000).pin_memory()
    for place in (slice(0, 5), slice(100_000, None), slice(5, 100_000)):
        into[place].copy_(there[place], non_blocking=True)
    torch.remote.synchronize()
    assert_same(into, base)


def test_the_value_is_that_of_the_place_in_the_program() -> None:
    there = torch.ones(300_000, device="remote")
    before = there.to("cpu", non_blocking=True)
    there.zero_()
    torch.remote.synchronize()
    assert before.min() == 1


def test_copies_over_the_same_pinned_memory_keep_their_order() -> None:
    large, small = torch.ones(2_000_000, device="remote"), torch.full((4,), 2.0, device="remote")
    for non_blocking in (True, False):
        into = torch.zeros(2_000_000).pin_memory()
        into.copy_(large, non_blocking=True)
        into[1_999_996:].copy_(small, non_blocking=non_blocking)
        torch.remote.synchronize()
        assert into[1_999_995:].tolist() == [1, 2, 2, 2, 2]
        into.copy_(small[:1], non_blocking=True)
        back = into.to("remote", non_blocking=non_blocking)
        assert back.mean().item() == 2


def test_gradients_go_through_a_download() -> None:
    x = torch.ones(3, device="remote", requires_grad=True)
    y = x.to("cpu", non_blocking=True)
    torch.remote.synchronize()
    (y * torch.arange(3.0)).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [0, 1, 2]


def test_a_destination_may_be_dropped_before_it_is_filled() -> None:
    before = torch_remote.stats().storages_live
    for _ in range(20):
        torch.ones(300_000, device="remote").to("cpu", non_blocking=True)
        storage = torch.empty(300_000).pin_memory().untyped_storage()
        torch.empty(0).set_(storage).copy_(torch.ones(300_000, device="remote"), non_blocking=True)
        del storage
    torch.remote.synchronize()
    assert torch_remote.stats().storages_live == before
    assert torch.arange(3.0, device="remote").to("cpu", non_blocking=False).tolist() == [0, 1, 2]


def test_many_are_bounded_and_all_arrive() -> None:
    there = torch.arange(3000.0, device="remote")
    results = [there[i].to("cpu", non_blocking=True) for i in range(3000)]
    torch.remote.synchronize()
    assert [int(r) for r in results] == list(range(3000))


def test_threads_download_and_synchronize_at_once() -> None:
    wrong: list[object] = []

    def work(number: int) -> None:
        for round in range(20):
            source = torch.full((20_000,), float(number * 100 + round))
            result = source.to("remote").to("cpu", non_blocking=True)
            torch.remote.synchronize()
            if not torch.equal(result, source):
                wrong.append((number, round))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_failed_download_is_raised_by_synchronize_once() -> None:
    good = torch.ones(3, device="remote")
    bad = bad_gather()
    with pytest.raises(torch_remote.RemoteError):
        bad.cpu()
    results = [t.to("cpu", non_blocking=True) for t in (good, bad, bad, bad[:0], good)]
    with pytest.raises(torch_remote.RemoteError, match="gather") as raised:
        torch.remote.synchronize()
    assert "failures.py" in str(raised.value)
    torch.remote.synchronize()
    assert_same([results[0], results[4]], [torch.ones(3)] * 2)


def test_a_download_behind_a_failure_is_told_with_it() -> None:
    good = torch.ones(3, device="remote")
    with pytest.raises(torch_remote.RemoteError, match="gather"):
        bad_gather()
        good.to("cpu", non_blocking=True)
        torch.remote.synchronize()
    torch.remote.synchronize()


def test_two_causes_are_raised_one_by_one() -> None:
    causes = []
    for _ in range(2):
        causes.append(bad_gather())
        with pytest.raises(torch_remote.RemoteError):
            causes[-1].cpu()
    for bad in reversed(causes):
        bad.to("cpu", non_blocking=True)
    for _ in causes:
        with pytest.raises(torch_remote.RemoteError):
            torch.remote.synchronize()
    torch.remote.synchronize()


FAILED = """
    import torch, torch_remote
    bad = torch.zeros(3, device="remote").index_select(0, torch.tensor([7], device="remote"))
    {known}
    result = bad.to("cpu", non_blocking=True)
"""


@pytest.mark.parametrize("known", ["", "try: bad.cpu()\n    except RuntimeError: pass"])
def test_a_failed_download_that_nobody_waits_for_is_printed_at_exit(known: str) -> None:
    done = run_python(FAILED.format(known=known))
    assert done.returncode == 1 and "index_select" in done.stderr


def test_blocking_mode_waits_for_every_download() -> None:
    assert_runs(
        """
        import torch, torch_remote
        x = torch.arange(5.0, device="remote")
        with torch_remote.count() as counted:
            y = x.to("cpu", non_blocking=True)
        assert counted.syncs == 1 and y.tolist() == [0, 1, 2, 3, 4]
        """,
        TORCH_REMOTE_BLOCKING="1",
    )


def test_a_lost_session_is_raised_where_a_pending_download_is_waited_for() -> None:
    assert_runs(
        """
        import os, signal, torch, torch_remote
        x = torch.ones(5_000_000, device="remote")
        torch.remote.synchronize()
        into = torch.zeros(5_000_000).pin_memory()
        (machine,) = torch_remote.machines()
        os.kill(machine.status()["pid"], signal.SIGSTOP)
        into.copy_(x, non_blocking=True)
        gone = x.to("cpu", non_blocking=True)
        del gone
        os.kill(machine.status()["pid"], signal.SIGKILL)
        try:
            torch.remote.synchronize()
        except torch_remote.SessionLost:
            print("lost")
        del x
        machine.stop()
        torch_remote.connect("local")
        into.copy_(torch.full((5_000_000,), 3.0, device="remote"), non_blocking=True)
        torch.remote.synchronize()
        assert into.min() == 3
        """
    )


def test_control_c_ends_the_wait_and_the_download_goes_on() -> None:
    assert_runs(
        """
        import os, signal, threading, torch, torch_remote
        x = torch.arange(3_000_000.0, device="remote")
        torch.remote.synchronize()
        pid = torch_remote.machines()[0].status()["pid"]
        os.kill(pid, signal.SIGSTOP)
        kept = x.to("cpu", non_blocking=True)
        dropped = (x + 1).to("cpu", non_blocking=True)
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            torch.remote.synchronize()
            raise SystemExit("it did not stop")
        except KeyboardInterrupt:
            del dropped
        os.kill(pid, signal.SIGCONT)
        torch.remote.synchronize()
        assert torch.equal(kept, torch.arange(3_000_000.0))
        """
    )


def test_a_program_may_end_with_downloads_pending() -> None:
    assert_runs(
        """
        import torch, torch_remote
        x = torch.ones(3_000_000, device="remote")
        results = [x.to("cpu", non_blocking=True) for _ in range(5)]
        """
    )
