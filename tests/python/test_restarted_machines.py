"""Machines that are stopped and started in one process: an index is used again, nothing is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

import torch_remote

MIB = 1 << 20


@contextmanager
def started() -> Iterator[torch.device]:
    with torch_remote.connect("local") as machine:
        yield machine.devices[0]


def test_an_index_is_used_again_and_old_tensors_stay_lost() -> None:
    torch.ones(1, device="remote")  # remote:0 stays with the machine of the other tests
    with started() as device:
        first = device
        old = torch.ones(3, device=device)
        assert old.tolist() == [1, 1, 1]
    with started() as device:
        assert device == first
        new = torch.full((3,), 2.0, device=device)
        assert new.tolist() == [2, 2, 2]
        uses: list[Callable[[], object]] = [
            old.tolist,
            lambda: old + 1,
            lambda: old + new,
            lambda: new + old,
            lambda: new.copy_(old),
            lambda: old.to("remote:0"),
            old.cpu,
        ]
        for use in uses:
            with pytest.raises(torch_remote.SessionLost, match=r"is lost: .*make them anew"):
                use()
        assert (new * 2).tolist() == [4, 4, 4]


def test_a_tensor_that_outlives_its_machine_does_not_count_on_the_next() -> None:
    with started() as device:
        old = torch.ones(MIB, device=device)
        assert torch.remote.memory_allocated(device) == old.nbytes
    with started() as device:
        assert torch.remote.memory_allocated(device) == 0
        new = torch.ones(10, device=device)
        del old
        assert torch.remote.memory_allocated(device) == new.nbytes
        assert torch.remote.max_memory_allocated(device) == new.nbytes


def test_a_snapshot_shows_the_present_machine_only() -> None:
    torch.remote.memory._record_memory_history()
    try:
        with started() as device:
            old = torch.ones(1000, device=device)
        with started() as device:
            assert device.index is not None
            new = torch.ones(10, device=device)
            snapshot = torch.remote.memory._snapshot()
            addresses = {s["address"] for s in snapshot["segments"] if s["device"] == device.index}
            assert addresses == {new.untyped_storage().data_ptr()}
            events = snapshot["device_traces"][device.index]
            assert old.untyped_storage().data_ptr() not in {event.get("addr") for event in events}
            del old  # notes the end of a storage whose machine is gone
            assert torch.remote.memory._snapshot()["device_traces"][device.index]
    finally:
        torch.remote.memory._record_memory_history(None)


def test_each_start_has_the_programs_seed() -> None:
    torch.manual_seed(5)
    expected = torch.randn(4)
    drawn = []
    for _ in range(2):
        torch.manual_seed(5)
        with started() as device:
            drawn.append(torch.randn(4, device=device).cpu())
    assert torch.equal(drawn[0], drawn[1])
    assert torch.equal(drawn[0], expected)


def test_a_seed_of_one_machine_does_not_seed_another() -> None:
    with started() as one, started() as two:
        with torch.remote.device(one):
            torch.remote.manual_seed(1)
        with torch.remote.device(two):
            torch.remote.manual_seed(2)
        assert torch.remote.initial_seed() is not None
        a, b = (torch.randn(4, device=device).cpu() for device in (one, two))
        assert not torch.equal(a, b)
        state = torch.remote.get_rng_state(one)
        c = torch.randn(4, device=one)
        torch.randn(4, device=two)
        torch.remote.set_rng_state(state, one)
        assert torch.equal(torch.randn(4, device=one), c)


def test_streams_and_events_of_a_stopped_machine_do_not_reach_the_next() -> None:
    with started() as device:
        stream = torch.remote.Stream(device)
        event = torch.remote.Event()
        with torch.remote.stream(stream):
            torch.ones(3, device=device).add_(1)
            event.record(stream)
        event.synchronize()
    with started() as device:
        with pytest.raises(torch_remote.SessionLost):
            event.synchronize()
        fresh = torch.remote.Stream(device)
        with torch.remote.stream(fresh):
            x = torch.ones(3, device=device) * 3
        fresh.synchronize()
        assert x.tolist() == [3, 3, 3]


def test_training_goes_on_where_the_weights_were_saved() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    kept = model.state_dict()
    losses = []
    for _ in range(3):
        with started() as device:
            model = torch.nn.Linear(4, 4, device=device)
            model.load_state_dict(kept)
            optimizer = torch.optim.SGD(model.parameters(), 0.01)
            loss = model(torch.ones(2, 4, device=device)).square().sum()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            kept = {name: value.cpu() for name, value in model.state_dict().items()}
    assert losses[0] > losses[1] > losses[2]


def test_replicas_on_machines_of_their_own_compute_what_one_does() -> None:
    with started() as one, started() as two:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        batch = torch.randn(6, 8)
        expected = model(batch)
        expected.sum().backward()
        gradient = model[0].weight.grad
        model.zero_grad()
        replicated = torch.nn.DataParallel(model.to(one), device_ids=[one, two])
        actual = replicated(batch.to(one))
        assert actual.device == one
        torch.testing.assert_close(actual.cpu(), expected)
        actual.sum().backward()
        torch.testing.assert_close(model[0].weight.grad.cpu(), gradient)


def test_many_starts_leave_nothing_behind() -> None:
    torch.remote.synchronize()
    before = torch_remote.stats().storages_live
    for step in range(8):
        with started() as device:
            x = torch.full((5,), float(step), device=device)
            assert x.sum().item() == 5 * step
            del x
    assert torch_remote.stats().storages_live == before
