"""Pinned memory, non_blocking copies and DataLoader, as with CUDA."""

from __future__ import annotations

import resource
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from failures import held_server
from helpers import assert_runs, assert_same
from torch.utils.data import DataLoader, Dataset

import torch_remote

MANY = 3_000_000  # 12 MB: more than is copied to send it later
LARGE = 128 << 20  # bytes: an upload of so many takes longer than a round trip


class Numbers(Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.full((3,), float(index)), "pair": (index, torch.tensor(index))}


OPTIONS: dict[str, dict[str, Any]] = {
    "in this process": {},
    "two workers": {"num_workers": 2},
    "persistent": {"num_workers": 2, "persistent_workers": True},
    "spawned": {"num_workers": 1, "multiprocessing_context": "spawn"},
    "batches by list": {"num_workers": 2, "collate_fn": list},
}


@pytest.fixture(autouse=True)
def number_of_threads() -> Iterator[None]:
    """A loader's thread that pins memory sets the number for all threads that start later."""
    yield
    torch.set_num_threads(torch.get_num_threads())


@pytest.mark.parametrize("options", OPTIONS)
def test_batches_arrive_pinned_and_go_to_the_device(options: str) -> None:
    torch.ones(1, device="remote")  # workers are forked from a process that has a session
    seen: list[float] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("default", "This DataLoader will create")  # more workers than cores
        loader = DataLoader(Numbers(), batch_size=4, pin_memory=True, **OPTIONS[options])
        for _ in range(2):
            for batch in loader:
                x = torch.stack([e["x"] for e in batch]) if isinstance(batch, list) else batch["x"]
                assert isinstance(batch, list) or (x.is_pinned() and batch["pair"][1].is_pinned())
                there = x.to("remote", non_blocking=True)
                assert_same(there, x)
                seen += there[:, 0].tolist()
    assert seen == [float(i) for i in range(10)] * 2


def test_a_shuffled_loader_has_the_order_of_the_seed() -> None:
    def order(pin: bool) -> list[Any]:
        torch.manual_seed(3)
        loader = DataLoader(Numbers(), batch_size=2, shuffle=True, num_workers=2, pin_memory=pin)
        return [batch["x"][:, 0].tolist() for batch in loader]

    assert order(True) == order(False)


def test_a_loader_under_a_default_device_takes_a_generator_of_it() -> None:
    with torch.device("remote"):
        generator = torch.Generator("remote").manual_seed(1)
        loader = DataLoader(list(range(10)), batch_size=5, shuffle=True, generator=generator)
        batches = list(loader)
    assert sorted(torch.cat(batches).tolist()) == list(range(10))
    assert batches[0].device.type == "remote"


def test_a_worker_that_uses_the_device_is_told_what_to_do() -> None:
    code = """
        import torch, torch_remote
        from torch.utils.data import DataLoader, Dataset
        class Bad(Dataset):
            def __len__(self): return 2
            def __getitem__(self, index): return torch.ones(2, device="remote")
        torch.ones(1, device="remote")
        try:
            next(iter(DataLoader(Bad(), num_workers=1)))
        except RuntimeError as error:
            print("spawn" in str(error))
    """
    assert assert_runs(code) == "True"


# --- pinned memory


def test_memory_is_pinned_by_every_way_of_torch() -> None:
    pinned = [
        torch.ones(3).pin_memory(),
        torch.empty(3, pin_memory=True),
        torch.ones(3).pin_memory()[1:],
        torch.empty_like(torch.ones(3), pin_memory=True),
        torch.ones(3, device="remote").to("cpu", non_blocking=True),
    ]
    assert all(t.is_pinned() for t in pinned)
    assert not torch.ones(3).is_pinned() and not torch.ones(3, device="remote").is_pinned()
    assert torch.ones(3).untyped_storage().pin_memory().is_pinned()
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2, 1)]).pin_memory()
    assert packed.is_pinned() and packed.to("remote").data.device.type == "remote"
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        torch.ones(3, device="remote").pin_memory()


def test_an_upload_from_pinned_memory_waits_for_nothing() -> None:
    pinned, pageable = torch.ones(MANY).pin_memory(), torch.ones(MANY)
    torch.ones(1, device="remote").item()
    for source, non_blocking, waits in (
        (pinned, True, 0),
        (pinned, False, 1),
        (pageable, True, 1),
        (pageable, False, 1),
    ):
        with torch_remote.count() as counted:
            there = source.to("remote", non_blocking=non_blocking)
        assert counted.syncs == waits, (source.is_pinned(), non_blocking)
        assert there.sum().item() == MANY


def wait_for_stream() -> None:
    torch.remote.current_stream().synchronize()


def wait_for_event() -> None:
    event = torch.remote.Event()
    event.record()
    event.synchronize()


def poll_event() -> None:
    event = torch.remote.Event()
    event.record()
    while not event.query():
        time.sleep(0.001)


def poll_stream() -> None:
    while not torch.remote.current_stream().query():
        time.sleep(0.001)


@pytest.mark.parametrize(
    "wait",
    [
        torch.remote.synchronize,
        torch.accelerator.synchronize,
        wait_for_stream,
        wait_for_event,
        poll_event,
        poll_stream,
    ],
    ids=["device", "accelerator", "stream", "event", "event.query", "stream.query"],
)
def test_after_a_wait_the_pinned_source_of_an_upload_may_be_written(
    wait: Callable[[], None],
) -> None:
    pinned = torch.ones(LARGE, dtype=torch.uint8).pin_memory()
    there = torch.empty(LARGE, dtype=torch.uint8, device="remote")
    torch.remote.synchronize()
    there.copy_(pinned, non_blocking=True)
    wait()
    pinned.zero_()
    assert there.min().item() == 1


def test_query_does_not_wait_for_an_upload() -> None:
    pinned = torch.ones(MANY).pin_memory()
    event = torch.remote.Event()
    with held_server(), torch_remote.count() as counted:
        there = pinned.to("remote", non_blocking=True)
        event.record()
        assert not event.query() and not torch.remote.current_stream().query()
    assert counted.syncs == 0
    torch.remote.synchronize()
    assert event.query() and torch.remote.current_stream().query()
    assert there.min().item() == 1


def test_calls_do_not_wait_for_an_upload() -> None:
    pinned = torch.ones(MANY).pin_memory()
    x = torch.ones(3, device="remote")
    with held_server():
        there = pinned.to("remote", non_blocking=True)
        y = x + 1
        assert not torch.remote.current_stream().query()  # the upload is still on its way
    assert y.sum().item() == 6
    assert there.min().item() == 1


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize("wait", [torch.remote.synchronize, wait_for_stream, wait_for_event])
def test_after_a_wait_an_upload_does_not_keep_its_source(wait: Callable[[], None]) -> None:
    memory = bytearray(2 << 20)
    users = sys.getrefcount(memory)
    source = torch.frombuffer(memory, dtype=torch.uint8)
    source.to("remote")
    del source
    assert sys.getrefcount(memory) == users
    pinned = torch.ones(LARGE, dtype=torch.uint8).pin_memory()
    there = pinned.to("remote", non_blocking=True)
    before = resident_bytes()
    del pinned
    wait()
    assert resident_bytes() < before - LARGE / 2
    assert there.min().item() == 1


def test_a_download_waits_unless_it_goes_to_pinned_memory() -> None:
    there = torch.arange(1000.0, device="remote")
    pinned, pageable = torch.empty(1000).pin_memory(), torch.empty(1000)
    for target, non_blocking, waits in (
        (pinned, True, 0),
        (pinned, False, 1),
        (pageable, True, 1),
        (pageable, False, 1),
    ):
        target.zero_()
        with torch_remote.count() as counted:
            target.copy_(there, non_blocking=non_blocking)
        assert counted.syncs == waits, (target.is_pinned(), non_blocking)
        if waits == 0:
            torch.remote.synchronize()
        assert_same(target, torch.arange(1000.0))


def test_a_module_and_a_batch_move_without_a_wait() -> None:
    model = torch.nn.Linear(8, 8)
    batch = torch.ones(4, 8).pin_memory()
    torch.ones(1, device="remote").item()
    with torch_remote.count() as counted:
        model.to("remote", non_blocking=True)(batch.to("remote", non_blocking=True))
    assert counted.syncs == 0
