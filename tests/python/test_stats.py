"""The counters that tests and benchmarks use."""

from __future__ import annotations

import os
import signal

import torch
from helpers import wait_until

import torch_remote

COUNTERS = [
    "calls", "syncs", "frames", "bytes_sent", "bytes_received", "signatures_sent",
    "inferred_by_meta", "inferred_by_server", "storages_live", "mispredicted",
]  # fmt: skip


def test_counters_are_plain_integers_and_print_as_a_table() -> None:
    now = torch_remote.stats()
    assert all(type(getattr(now, name)) is int for name in COUNTERS)
    assert [line.split()[0] for line in str(now).splitlines()] == COUNTERS


def test_counters_print_although_a_server_is_lost() -> None:
    machine = torch_remote.connect("local")
    os.kill(int(machine.status()["pid"]), signal.SIGKILL)
    assert wait_until(lambda: machine.status()["state"] == "lost")
    assert str(torch_remote.stats()).split()[-2:] == ["mispredicted", "unknown"]
    machine.stop()
    assert str(torch_remote.stats()).split()[-1].isdigit()


def test_a_block_counts_its_own_calls_and_runs_while_it_does() -> None:
    x = torch.ones(4, device="remote")
    with torch_remote.count() as counted:
        y = x + x
        first = counted.calls
        z = y * y
    after = counted.calls
    z.sum()
    assert first == 1
    assert after == 2
    assert counted.calls == 2
    assert counted.syncs == 0


def test_a_read_is_one_sync() -> None:
    x = torch.ones(4, device="remote")
    with torch_remote.count() as counted:
        x.sum().item()
    assert counted.syncs == 1
    assert counted.bytes_received > 0


def test_a_call_seen_before_sends_no_signature() -> None:
    x = torch.ones(13, 7, device="remote")
    x.mul(x)
    with torch_remote.count() as counted:
        x.mul(x)
    assert counted.signatures_sent == 0
    assert counted.calls == 1


def test_storages_are_counted_while_they_live() -> None:
    with torch_remote.count() as counted:
        kept = torch.ones(4, device="remote")
        alive = counted.storages_live
        del kept
    assert alive == 1
    assert counted.storages_live == 0


def test_views_are_free() -> None:
    x = torch.ones(4, 6, device="remote")
    with torch_remote.count() as counted:
        x.t()[1:3].unsqueeze(0).expand(5, -1, -1).permute(2, 0, 1)
    assert (counted.calls, counted.syncs) == (0, 0)


def test_a_training_step_without_a_read_waits_for_nothing() -> None:
    model = torch.nn.Linear(8, 8, device="remote")
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.ones(4, 8, device="remote")

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    step()
    with torch_remote.count() as counted:
        step()
    assert counted.syncs == 0
    assert counted.mispredicted == 0, "some test before this one in the process was mispredicted"
