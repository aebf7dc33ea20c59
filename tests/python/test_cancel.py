"""torch_remote.cancel(): calls that have not begun are dropped, of every thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import torch
from helpers import DEADLINE, DEVICE, assert_runs

import torch_remote

DROPPED = r"dropped by torch_remote\.cancel\(\) before it began"
N = 1500


@pytest.fixture(scope="module")
def large() -> torch.Tensor:
    return torch.rand(N, N, device=DEVICE)


@pytest.fixture(autouse=True)
def all_told() -> Iterator[None]:
    yield
    torch_remote.synchronize()


def much_work(large: torch.Tensor) -> list[torch.Tensor]:
    """For seconds, were it done."""
    return [large @ large for _ in range(100)]


def has_value(tensor: torch.Tensor) -> bool:
    try:
        tensor[0, 0].item()
    except RuntimeError as error:
        assert "dropped by torch_remote.cancel()" in str(error)
        return False
    return True


def test_calls_that_have_not_begun_do_not_run(large: torch.Tensor) -> None:
    (large @ large)[0, 0].item()
    begin = time.monotonic()
    (large @ large)[0, 0].item()
    one = time.monotonic() - begin
    counter = torch.zeros((), device=DEVICE)
    torch_remote.synchronize()

    products = much_work(large)
    counter.add_(1)
    begin = time.monotonic()
    torch_remote.cancel()
    took = time.monotonic() - begin

    assert took < 50 * one
    assert not has_value(products[-1])
    assert counter.item() == 0, "what exists keeps its value"
    counter.add_(1)
    assert counter.item() == 1
    assert torch.equal((large @ large).cpu(), large.cpu() @ large.cpu())


def test_the_error_of_what_is_missing_names_the_call(large: torch.Tensor) -> None:
    products = much_work(large)
    torch_remote.cancel()
    with pytest.raises(RuntimeError, match=DROPPED):
        products[-1].sum().item()


def test_without_calls_it_does_nothing() -> None:
    x = torch.ones(2, device=DEVICE)
    torch_remote.synchronize()
    torch_remote.cancel()
    torch_remote.cancel()
    assert x.sum().item() == 2


def test_without_machines_it_does_nothing() -> None:
    assert_runs("""
        import torch_remote
        torch_remote.cancel()
        assert not torch_remote.machines()
    """)


def test_another_threads_next_call_raises(large: torch.Tensor) -> None:
    is_sent, may_go_on = threading.Event(), threading.Event()
    told: list[str] = []

    def work() -> None:
        x = much_work(large)[-1]
        is_sent.set()
        may_go_on.wait(DEADLINE)
        try:
            x.sum().item()
        except RuntimeError as error:
            told.append(str(error))
        told.append(str(torch.ones(2, device=DEVICE).sum().item()))

    thread = threading.Thread(target=work)
    thread.start()
    assert is_sent.wait(DEADLINE)
    torch_remote.cancel()
    may_go_on.set()
    thread.join(DEADLINE)
    assert "dropped by torch_remote.cancel()" in told[0]
    assert told[1:] == ["2.0"]


def test_an_earlier_failure_is_raised() -> None:
    index = torch.tensor([9], device=DEVICE)
    torch.ones(2, device=DEVICE).index_select(0, index)
    other = threading.Thread(target=torch.ones((), device=DEVICE).item)
    other.start()
    other.join(DEADLINE)  # so it has failed
    with pytest.raises(RuntimeError, match=r"index_select.*out of range"):
        torch_remote.cancel()


def test_steps_that_were_dropped_are_taken_back(large: torch.Tensor) -> None:
    weight = torch.nn.Parameter(torch.ones(3, device=DEVICE))
    optimizer = torch.optim.Adam([weight], lr=0.5)
    weight.grad = torch.ones(3, device=DEVICE)
    optimizer.step()
    before = weight.detach().cpu()

    much_work(large)
    optimizer.step()
    optimizer.step()
    torch_remote.cancel()

    assert torch.equal(weight.detach().cpu(), before)
    assert float(optimizer.state[weight]["step"]) == 1
    optimizer.step()
    assert not torch.equal(weight.detach().cpu(), before)


def test_a_graph_that_was_dropped_can_be_replayed(large: torch.Tensor) -> None:
    x = torch.zeros((), device=DEVICE)
    x.add_(0)
    graph = torch_remote.Graph()
    with graph:
        x.add_(1)
    torch_remote.synchronize()
    much_work(large)
    graph.replay()
    torch_remote.cancel()
    assert x.item() == 0
    graph.replay()
    assert x.item() == 1


def test_random_numbers_go_on_from_the_calls_that_ran(large: torch.Tensor) -> None:
    torch.manual_seed(7)
    expected = torch.rand(4, device=DEVICE).cpu()
    torch.manual_seed(7)
    torch_remote.synchronize()
    much_work(large)
    torch.rand(4, device=DEVICE)
    torch_remote.cancel()
    assert torch.equal(torch.rand(4, device=DEVICE).cpu(), expected)


def test_a_recording_cannot_be_cancelled() -> None:
    x = torch.zeros((), device=DEVICE)
    x.add_(0)
    with pytest.raises(RuntimeError, match="cancel"), torch_remote.Graph():
        torch_remote.cancel()


def test_what_a_dropped_replay_would_have_made_is_missing(large: torch.Tensor) -> None:
    graph = torch_remote.Graph()
    with graph:
        product = large @ large
    graph.replay()
    assert has_value(product)
    work = much_work(large)
    graph.replay()
    torch_remote.cancel()
    assert not has_value(product)
    torch_remote.synchronize()
    graph.replay()
    assert has_value(product)
    assert len(work) == 100
