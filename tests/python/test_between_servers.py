"""Copies between two servers pass through the client in pieces."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest
import torch
from helpers import DEADLINE, assert_runs, assert_same, wait_until

import torch_remote

MIB = 1 << 20
PIECE = 8 * MIB  # kRelayPiece in client/call/copy.cpp
HERE = "remote:0"


@pytest.fixture(scope="module")
def there() -> Iterator[torch.device]:
    torch.ones(1, device=HERE)
    with torch_remote.connect("local") as machine:
        yield machine.devices[0]


def large(pieces: float = 3.3, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.arange(int(pieces * PIECE) // dtype.itemsize).to(dtype)


@pytest.mark.parametrize("size", [PIECE - 4, PIECE, PIECE + 4, 20 * PIECE + 12])
def test_values_of_any_number_of_pieces_are_exact(there: torch.device, size: int) -> None:
    local = torch.randint(-9, 9, (size // 4,), dtype=torch.int32)
    copied = local.to(HERE).to(there)
    assert copied.device == there
    assert_same((copied + 1).cpu(), local + 1)
    assert_same(copied.to(HERE).cpu(), local)


def test_layouts_dtypes_and_broadcasts_are_those_of_a_local_copy(there: torch.device) -> None:
    local = large(3).reshape(2, -1, 6, 4)[:, :-1]
    for view in (
        lambda t: t,
        lambda t: t.transpose(0, 3),
        lambda t: t[..., ::2],
        lambda t: t.contiguous(memory_format=torch.channels_last),
        lambda t: t[:1].expand(3, -1, -1, -1),
        lambda t: torch.complex(t.float(), t.float()).conj(),
    ):
        expected = view(local).to("cpu", copy=True)
        copied = view(local.to(HERE)).to(there)
        assert copied.stride() == expected.stride()
        assert_same(copied.cpu(), expected)
    source = local.to(HERE)
    for destination in (
        torch.zeros(local.size(), dtype=torch.float64, device=there),
        torch.zeros(3, *local.size(), dtype=local.dtype, device=there),
        torch.zeros(*local.size(), 2, dtype=local.dtype, device=there)[..., 1],
    ):
        destination.copy_(source)
        expected = torch.zeros(destination.size(), dtype=destination.dtype).copy_(local)
        assert_same(destination.cpu(), expected)


def test_a_part_of_the_destination_is_filled_and_the_rest_stays(there: torch.device) -> None:
    local = large()
    destination = torch.full((local.numel() + 100,), 7, dtype=local.dtype, device=there)
    destination[50:-50].copy_(local.to(HERE))
    assert_same(destination[50:-50].cpu(), local)
    assert destination[:50].eq(7).all() and destination[-50:].eq(7).all()


def test_order_is_kept_on_both_sides(there: torch.device) -> None:
    source = large().to(HERE)
    destination = torch.zeros_like(source, device=there)
    for turn in range(3):
        source.add_(1)
        destination.copy_(source)
        source.mul_(2)
        destination.add_(turn)
    expected, copied = large(), torch.tensor(0)
    for turn in range(3):
        expected.add_(1)
        copied = expected + turn
        expected.mul_(2)
    assert_same(destination.cpu(), copied)


def test_gradients_pass_between_servers(there: torch.device) -> None:
    weight = torch.ones(3 * PIECE // 4, device=HERE, requires_grad=True)
    (weight.to(there) * 3).sum().backward()
    assert weight.grad is not None and weight.grad.device == weight.device
    assert weight.grad.eq(3).all()


def test_the_client_holds_only_a_window_of_the_value() -> None:
    said = assert_runs("""
        import threading, torch, torch_remote
        from pathlib import Path

        def resident():
            return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20

        x = torch.ones(512 << 20, dtype=torch.uint8, device="remote:0")
        x[::4096] = 5
        with torch_remote.connect("local") as machine:
            torch.ones(1, device=machine.devices[0]).cpu()
            torch_remote.synchronize()
            before, most, over = resident(), 0, threading.Event()

            def watch():
                global most
                while not over.wait(0.002):
                    most = max(most, resident())

            watcher = threading.Thread(target=watch)
            watcher.start()
            y = x.to(machine.devices[0])
            torch_remote.synchronize()
            over.set()
            watcher.join()
            assert y.sum(dtype=torch.int64).item() == (512 << 20) + 4 * (512 << 20) // 4096
            print(most - before)
    """)
    assert 0 <= int(said.split()[-1]) < 120  # MiB: a window of 64, and what other threads need


def test_a_value_that_was_never_made_raises_its_call_and_leaves_the_destination(
    there: torch.device,
) -> None:
    destination = torch.zeros(3 * PIECE // 4, device=there)
    index = torch.full((3 * PIECE // 4,), 99, device=HERE)
    failed = torch.zeros(5, device=HERE)[index]
    with pytest.raises(RuntimeError, match="index"):
        destination.copy_(failed)
    assert destination.eq(0).all()
    assert_same(large().to(HERE).to(there).cpu(), large())


def test_a_destination_that_was_never_made_raises_its_call(there: torch.device) -> None:
    index = torch.full((3 * PIECE // 4,), 99, device=there)
    failed = torch.zeros(5, device=there)[index]
    with pytest.raises(RuntimeError, match="index"):
        failed.copy_(torch.zeros(3 * PIECE // 4, device=HERE))
        torch_remote.synchronize()


@pytest.mark.parametrize("lost", ["source", "destination"])
def test_the_loss_of_a_server_is_raised_as_its_own(lost: str) -> None:
    """The other server's tensors stay."""
    with torch_remote.connect("local") as one, torch_remote.connect("local") as other:
        source = torch.ones(64 * PIECE // 4, device=one.devices[0])
        destination = torch.zeros(64 * PIECE // 4, device=other.devices[0])
        torch_remote.synchronize()
        machine, kept = (one, destination) if lost == "source" else (other, source)
        pid = int(machine.status()["pid"])
        begun = torch_remote.stats().bytes_received

        def kill() -> None:
            wait_until(lambda: torch_remote.stats().bytes_received > begun + 4 * PIECE)
            os.kill(pid, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        with pytest.raises(torch_remote.SessionLost):
            destination.copy_(source)
            torch_remote.synchronize()
        killer.join(DEADLINE)
        assert machine.status()["state"] == "lost"
        assert kept[:3].add(1).sum().item() >= 3
        machine.stop()


def test_an_interrupt_ends_the_copy_and_both_servers_go_on() -> None:
    assert_runs("""
        import os, signal, threading, time, torch, torch_remote
        x = torch.ones(256 << 20, dtype=torch.uint8, device="remote:0")
        with torch_remote.connect("local") as machine:
            y = torch.zeros_like(x, device=machine.devices[0])
            torch_remote.synchronize()
            for turn in range(3):
                begun = torch_remote.stats().bytes_received

                def interrupt():
                    while torch_remote.stats().bytes_received < begun + (40 << 20):
                        time.sleep(0.001)
                    os.kill(os.getpid(), signal.SIGINT)

                thread = threading.Thread(target=interrupt)
                thread.start()
                try:
                    for _ in range(1000):
                        y.copy_(x)
                except KeyboardInterrupt:
                    pass
                else:
                    raise AssertionError("not interrupted")
                thread.join()
                assert (x[:3] + 1).tolist() == [2, 2, 2]
                y.zero_()
                assert y.sum(dtype=torch.int64).item() == 0
            y.copy_(x)
            assert y.sum(dtype=torch.int64).item() == 256 << 20
    """)
