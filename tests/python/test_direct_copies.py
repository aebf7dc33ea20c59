"""Copies between two servers that were started with --peers do not pass through the client."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from helpers import DEADLINE, assert_same, serving, wait_until

import torch_remote

MIB = 1 << 20
FEW = 64 << 10  # bytes: messages, and nothing of the values


@dataclass
class Server:
    url: str
    token: Path

    def connect(self) -> torch_remote.Machine:
        return torch_remote.connect(self.url, token_file=self.token)


@contextmanager
def started(folder: Path, *options: str) -> Iterator[Server]:
    token = folder / "token"
    if not token.exists():
        token.write_text("0" * 64)
        token.chmod(0o600)
    with serving("tcp://127.0.0.1:0", "--token-file", str(token), *options) as url:
        yield Server(url, token)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    folder = tmp_path_factory.mktemp("peers")
    with started(folder, "--peers") as one, started(folder, "--peers") as other:
        yield one, other


@pytest.fixture(scope="module")
def peers(servers: tuple[Server, Server]) -> Iterator[tuple[torch.device, torch.device]]:
    with servers[0].connect() as one, servers[1].connect() as other:
        yield one.devices[0], other.devices[0]


def passed_through_client(destination: torch.Tensor, source: torch.Tensor) -> int:
    """How many bytes the client sends and receives for a copy."""
    torch_remote.synchronize()
    with torch_remote.count() as counted:
        destination.copy_(source)
        torch_remote.synchronize()
    return int(counted.bytes_sent + counted.bytes_received)


def test_the_bytes_are_exact_and_do_not_pass_through_the_client(
    peers: tuple[torch.device, torch.device],
) -> None:
    for here, there in (peers, peers[::-1]):
        for size in (FEW, 9 * MIB + 12):
            local = torch.randint(-9, 9, (size // 4,), dtype=torch.int32)
            source, copied = local.to(here), torch.zeros(size // 4, dtype=torch.int32, device=there)
            assert passed_through_client(copied, source) < FEW // 2
            assert copied.device == there
            assert_same((copied + 1).cpu(), local + 1)


def test_layouts_dtypes_and_parts_are_those_of_a_local_copy(
    peers: tuple[torch.device, torch.device],
) -> None:
    here, there = peers
    local = torch.arange(2 * 100 * 60 * 40).reshape(2, 100, 60, 40)
    for view in (
        lambda t: t.transpose(0, 3),
        lambda t: t[:, 1:, ::2],
        lambda t: t.contiguous(memory_format=torch.channels_last),
        lambda t: t[:1].expand(3, -1, -1, -1),
        lambda t: torch.complex(t.float(), t.float()).conj(),
        lambda t: t.to(torch.bfloat16),
        lambda t: t % 3 == 0,
    ):
        expected = view(local).to("cpu", copy=True)
        copied = view(local.to(here)).to(there)
        assert copied.stride() == expected.stride()
        assert_same(copied.cpu(), expected)
    source = local.to(here)
    for destination in (
        torch.zeros(local.size(), dtype=torch.float64, device=there),
        torch.zeros(*local.size(), 2, dtype=local.dtype, device=there)[..., 1],
        torch.zeros(3, *local.size(), dtype=local.dtype, device=there)[1],
    ):
        destination.copy_(source)
        assert_same(destination.cpu(), local.to(destination.dtype))


def test_order_is_kept_on_both_sides(peers: tuple[torch.device, torch.device]) -> None:
    here, there = peers
    local = torch.arange(MIB, dtype=torch.int32)
    source, destination = local.to(here), torch.zeros_like(local, device=there)
    for turn in range(3):
        source.add_(1)
        destination.copy_(source)
        source.mul_(2)
        destination.add_(turn)
        local.add_(1)
        expected = local + turn
        local.mul_(2)
    assert_same(destination.cpu(), expected)


def test_threads_copy_in_both_directions_at_once(peers: tuple[torch.device, torch.device]) -> None:
    wrong: list[int] = []

    def copy_to_and_fro(number: int) -> None:
        here, there = peers if number % 2 else peers[::-1]
        local = torch.full((3 * MIB // 4,), number, dtype=torch.int32)
        value = local.to(here)
        for _ in range(4):
            value = value.to(there).to(here)
        if not torch.equal(value.cpu(), local):
            wrong.append(number)

    threads = [threading.Thread(target=copy_to_and_fro, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert wrong == [] and not any(thread.is_alive() for thread in threads)


def test_a_value_that_was_never_made_raises_its_call_and_leaves_the_destination(
    peers: tuple[torch.device, torch.device],
) -> None:
    here, there = peers
    destination = torch.zeros(MIB, device=there)
    failed = torch.zeros(5, device=here)[torch.full((MIB,), 99, device=here)]
    with pytest.raises(RuntimeError, match="index"):
        destination.copy_(failed)
    assert destination.eq(0).all()
    source = torch.ones(MIB, device=here)
    assert passed_through_client(destination, source) < FEW
    assert destination.eq(1).all()


def test_without_peers_the_bytes_pass_through_the_client(
    peers: tuple[torch.device, torch.device], tmp_path: Path
) -> None:
    local = torch.arange(MIB, dtype=torch.int32)
    with started(tmp_path) as server, server.connect() as machine:
        source = local.to(peers[0])
        copied = torch.zeros_like(local, device=machine.devices[0])
        assert passed_through_client(copied, source) > 2 * local.nbytes
        assert_same(copied.cpu(), local)


@pytest.mark.parametrize("lost", ["source", "destination"])
def test_the_loss_of_a_server_is_raised_as_its_own(
    lost: str, servers: tuple[Server, Server]
) -> None:
    """Its session is killed in the middle of the copies."""
    with servers[0].connect() as one, servers[1].connect() as other:
        source = torch.ones(16 * MIB, device=one.devices[0])
        destination = torch.zeros(16 * MIB, device=other.devices[0])
        destination.copy_(source)
        torch_remote.synchronize()
        machine, kept = (one, destination) if lost == "source" else (other, source)
        pid = int(machine.status()["pid"])
        killer = threading.Timer(0.2, lambda: os.kill(pid, signal.SIGKILL))
        killer.start()
        with pytest.raises(torch_remote.SessionLost):
            while True:
                destination.copy_(source)
        killer.join(DEADLINE)
        assert wait_until(lambda: machine.status()["state"] == "lost")
        assert kept[:3].sum().item() == 3
        machine.stop()
