"""What a step notes of its optimizer costs no crash, keeps nothing alive and reads anything."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from failures import bad_gather, hear_of_failure, held_server, in_thread
from helpers import serving, wait_until
from restoring import assert_taken_back, fail, make_adam, record_unraisable, step  # noqa: F401

import torch_remote
from torch_remote import _C, _optimizers


def test_a_counter_that_was_moved_is_not_noted_and_one_moved_back_is() -> None:
    weight, optimizer = make_adam()
    for _ in range(2):
        step(weight, optimizer, 1)
    counter = optimizer.state[weight]["step"]
    counter.data = counter.data.to("remote")
    step(weight, optimizer, 1)
    with held_server():
        failed = bad_gather()
        counter.data = torch.tensor(7.0)  # the note of the next step shares the last one's entries
        step(weight, optimizer, failed)
        assert counter.item() == 8
    with pytest.raises(torch_remote.RemoteError, match="aten::gather"):
        failed.item()
    assert optimizer.state[weight]["step"] is counter
    assert counter.item() == 7


def test_a_counter_that_was_moved_after_the_failure_is_left() -> None:
    weight, optimizer = make_adam()
    for _ in range(2):
        step(weight, optimizer, 1)
    counter = optimizer.state[weight]["step"]

    def work(failed: torch.Tensor) -> None:
        step(weight, optimizer, failed)
        counter.data = counter.data.to("remote")

    fail(work)
    assert counter.device.type == "remote"


WAITS: dict[str, Callable[[], object]] = {
    "torch_remote.synchronize": torch_remote.synchronize,
    "torch.remote.synchronize": lambda: torch.remote.synchronize(),
    "memory_allocated": lambda: torch.remote.memory_allocated(),
    "empty_cache": lambda: torch.remote.empty_cache(),
}


@pytest.mark.parametrize("wait", WAITS)
def test_state_that_was_replaced_is_freed_once_its_steps_are_done(wait: str) -> None:
    weight, optimizer = make_adam()
    for _ in range(3):
        step(weight, optimizer, 1)
    average = weakref.ref(optimizer.state[weight]["exp_avg"])
    for state in optimizer.state.values():
        for key, value in state.items():
            state[key] = value.cpu()
        del value
    WAITS[wait]()
    assert average() is None


def test_a_step_that_may_have_failed_keeps_what_it_found() -> None:
    weight, optimizer = make_adam()
    for _ in range(2):
        step(weight, optimizer, 1)
    average = optimizer.state[weight]["exp_avg"]
    with held_server():
        failed = bad_gather()
        step(weight, optimizer, failed)
        optimizer.state[weight]["exp_avg"] = average * 2
        _optimizers.forget_done()
    with pytest.raises(torch_remote.RemoteError):
        failed.item()
    assert optimizer.state[weight]["exp_avg"] is average


# --- steps that were aborted, and threads that have ended


def abort_step(optimizer: torch.optim.Optimizer) -> None:
    def closure() -> float:
        raise RuntimeError("aborted")

    with pytest.raises(RuntimeError, match="aborted"):
        optimizer.step(closure)


def notes_of(optimizer: torch.optim.Optimizer) -> _C.Notes:
    return _optimizers._noted[id(optimizer)][1]


def forgets_all(optimizer: torch.optim.Optimizer) -> bool:
    _optimizers.forget_done()
    return not notes_of(optimizer).all()


def test_an_aborted_step_of_a_thread_that_has_ended_keeps_no_later_note() -> None:
    weight, optimizer = make_adam()
    assert not in_thread(lambda: abort_step(optimizer))
    for _ in range(5):
        step(weight, optimizer, 1)
    torch_remote.synchronize()
    assert wait_until(lambda: forgets_all(optimizer))
    assert notes_of(optimizer).begin(optimizer) == 1


def test_an_aborted_step_of_a_thread_that_lives_is_forgotten_once_no_step_runs() -> None:
    weight, optimizer = make_adam()
    step(weight, optimizer, 1)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(abort_step, optimizer).result()
        step(weight, optimizer, 1)
        torch_remote.synchronize()
        assert forgets_all(optimizer)
        pool.submit(abort_step, optimizer).result()
        torch_remote.synchronize()
        assert forgets_all(optimizer)
    assert notes_of(optimizer).begin(optimizer) == 1


def test_a_step_that_another_thread_runs_is_not_taken_for_an_aborted_one() -> None:
    weight, optimizer = make_adam()
    begun, may_end = threading.Event(), threading.Event()

    def closure() -> float:
        begun.set()
        may_end.wait()
        return 0.0

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(lambda: optimizer.step(closure))
        try:
            assert begun.wait(60)
            step(weight, optimizer, 1)
            torch_remote.synchronize()
            assert [note.has_ended for note in notes_of(optimizer).all()] == [False]
        finally:
            may_end.set()
        running.result()
        torch_remote.synchronize()
        assert forgets_all(optimizer)


def test_a_failure_that_an_ended_thread_left_on_another_machine_keeps_no_note(
    tmp_path: Path,
) -> None:
    listen = f"unix://{tmp_path}/server.sock"
    torch.ones(1, device="remote:0").item()
    with serving(listen, "--device", "cpu") as url, torch_remote.connect(url) as machine:
        weight = torch.nn.Parameter(torch.ones(2, device=machine.devices[0]))
        optimizer = torch.optim.Adam([weight])

        def work() -> None:
            step(weight, optimizer, 1)
            bad_gather()

        assert not in_thread(work)
        hear_of_failure()
        step(weight, optimizer, 1)
        assert weight.tolist() != [1, 1]  # waits for that machine only
        assert wait_until(lambda: forgets_all(optimizer))
        with pytest.raises(torch_remote.RemoteError, match="aten::gather"):
            torch_remote.synchronize()


def test_a_note_that_is_removed_has_ended() -> None:
    _, optimizer = make_adam()
    notes = _C.Notes()
    assert notes.begin(optimizer) == 1
    (note,) = notes.all()
    notes.remove(note)
    assert notes.begin(optimizer) == 1


def test_a_note_of_a_device_that_is_gone_raises_nothing() -> None:
    torch.ones(1, device="remote").item()
    notes, note = _C.Notes(), _C.Note([100], {})
    notes.add(note)
    notes.end(note)
    notes.forget_done()
    assert notes.all() == []


class Parameters:
    """A sequence that is no list."""

    def __init__(self, *of: torch.Tensor) -> None:
        self.of = of

    def __len__(self) -> int:
        return len(self.of)

    def __getitem__(self, at: int) -> torch.Tensor:
        return self.of[at]


@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("held", ["list", "tuple", "sequence", "tensor"])
def test_groups_and_parameters_may_be_any_sequence(kind: type[Any], held: str) -> None:
    weight = torch.nn.Parameter(torch.ones(2, device="remote"))
    makes: dict[str, Any] = {
        "list": [weight],
        "tuple": (weight,),
        "sequence": Parameters(weight),
        "tensor": weight,
    }

    class Counts(torch.optim.Optimizer):
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            state = self.state[weight]
            state["count"] = state.get("count", 0) + 1

    optimizer = Counts([weight], {})
    optimizer.param_groups[0]["params"] = makes[held]
    optimizer.param_groups = kind(optimizer.param_groups)
    optimizer.step()
    torch_remote.synchronize()
    fail(lambda _: optimizer.step())
    assert optimizer.state[weight] == {"count": 1}


def test_a_step_is_noted_if_only_the_last_parameter_of_its_last_group_is_remote() -> None:
    local = [torch.nn.Parameter(torch.ones(2)) for _ in range(3)]
    weight = torch.nn.Parameter(torch.ones(2, device="remote"))
    groups = [{"params": local[:1]}, {"params": [*local[1:], weight]}]
    optimizer = torch.optim.Adam(groups)
    step(weight, optimizer, 1)
    torch_remote.synchronize()
    fail(lambda failed: step(weight, optimizer, failed))
    assert_taken_back(weight, optimizer)


def test_a_step_of_local_parameters_is_not_noted() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([weight])
    step(weight, optimizer, 1)
    assert id(optimizer) not in _optimizers._noted


def test_an_optimizer_whose_state_raises_is_named(unraisable: list[Any]) -> None:
    class Raises(torch.optim.SGD):
        is_broken = False

        @property
        def state(self) -> Any:
            if self.is_broken:
                raise RuntimeError("no state any more")
            return self.__dict__["states"]

        @state.setter
        def state(self, states: Any) -> None:
            self.__dict__["states"] = states

    weight = torch.nn.Parameter(torch.ones(2, device="remote"))
    optimizer = Raises([weight], lr=0.1)
    step(weight, optimizer, 1)
    optimizer.is_broken = True
    with pytest.warns(UserWarning, match="Raises is not wholly restored .*: no state any more"):
        fail(lambda failed: step(weight, optimizer, failed))
    assert not unraisable


@pytest.mark.parametrize("device", ["cpu", "remote"])
def test_groups_that_cannot_be_read_do_not_stop_a_step(device: str) -> None:
    class Unreadable(torch.optim.SGD):
        steps = 0

        def step(self, closure: object = None) -> None:  # type: ignore[override]
            self.steps += 1

    weight = torch.nn.Parameter(torch.ones(2, device=device))
    optimizer = Unreadable([weight], lr=0.1)
    for odd in (7, None, {"params": [weight]}, weight, [7], [{"params": 7}]):
        optimizer.param_groups = odd
        optimizer.step()
    assert optimizer.steps == 6


def test_groups_that_raise_later_do_not_stop_the_restoration(unraisable: list[Any]) -> None:
    class Raises(torch.optim.Adam):
        is_broken = False

        @property
        def param_groups(self) -> list[dict[str, Any]]:
            if self.is_broken:
                raise RuntimeError("no groups any more")
            return self.groups

        @param_groups.setter
        def param_groups(self, groups: list[dict[str, Any]]) -> None:
            self.groups = groups

    odd_weight = torch.nn.Parameter(torch.ones(2, device="remote"))
    odd = Raises([odd_weight])
    weight, optimizer = make_adam()
    step(odd_weight, odd, 1)
    step(weight, optimizer, 1)

    def work(failed: torch.Tensor) -> None:
        step(odd_weight, odd, failed)
        step(weight, optimizer, failed)
        odd.is_broken = True

    with pytest.warns(UserWarning, match="Raises is not wholly restored"):
        fail(work)
    assert_taken_back(weight, optimizer)
    assert int(odd.state[odd_weight]["step"]) == 1
    assert not unraisable
