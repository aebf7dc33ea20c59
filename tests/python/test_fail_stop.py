"""A failed call stops its thread, as an exception does locally: what is raised, where and when."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from failures import SIZES, bad_gather, held_server, told
from helpers import DEVICE, assert_runs, assert_same

import torch_remote

MOST_UNDER_WAY = 65536  # calls: CallWindow::kFull in client/session/call_window.h


def last_call() -> int:
    """The number of the last call that was sent, or is to be sent."""
    return torch_remote._C.call_number(0)[1]


# --- what is done, and what is not


def test_calls_after_the_failing_one_are_not_made() -> None:
    before, target = (torch.ones(3, device="remote") for _ in range(2))
    before.add_(1)
    failed = bad_gather()
    with pytest.raises(torch_remote.RemoteError):
        target.add_(1)
        failed.tolist()
    assert before.tolist() == [2, 2, 2]
    assert target.tolist() == [1, 1, 1]
    target.add_(1)
    assert target.tolist() == [2, 2, 2]


def test_a_failure_is_told_by_a_call_that_reads_nothing() -> None:
    x = torch.zeros(2, device="remote")
    torch_remote.synchronize()
    bad_gather()
    assert "aten::gather" in str(told(lambda: x.add_(1)))
    assert x.sum().item() == 0


def test_the_error_says_how_many_calls_were_discarded() -> None:
    x = torch.zeros(2, device="remote")
    empty = torch.empty(0, device="remote")
    with held_server():
        bad_gather()
        x.add_(1)
        empty.resize_(5)  # is not discarded
    with pytest.raises(torch_remote.RemoteError, match="1 later call of this thread was discarded"):
        x.tolist()


def test_steps_that_read_nothing_raise_a_failure_before_more_calls_than_may_be_under_way() -> None:
    weight = torch.nn.Parameter(torch.ones(4, device="remote"))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    steps = failing = 0
    with pytest.raises(torch_remote.RemoteError, match="aten::gather"):
        for steps in range(500 + MOST_UNDER_WAY):
            optimizer.zero_grad()
            factor = bad_gather() if steps == 500 else 1
            if steps == 500:
                failing = last_call()
            (weight * factor).square().sum().backward()
            optimizer.step()
    assert steps >= 500
    assert last_call() - failing <= MOST_UNDER_WAY


def test_random_numbers_are_drawn_as_in_a_local_run() -> None:
    def run(device: str) -> object:
        torch.manual_seed(5)
        first = torch.rand(3, device=device)
        source = torch.ones(next(SIZES), device=device)
        try:
            torch.gather(source, 0, torch.tensor([10**6], device=device))
            for _ in range(3):
                torch.rand(3, device=device)
            torch.rand(1, device=device).item()
        except RuntimeError:
            pass
        return first, torch.rand(3, device=device)

    assert_same(run(DEVICE), run("cpu"))


# --- missing values


def test_what_was_never_made_is_missing_and_says_so_each_time() -> None:
    failed = bad_gather()
    with pytest.raises(torch_remote.RemoteError):
        failed.tolist()
    for use in (failed.tolist, lambda: failed + 1, lambda: failed.add_(1), lambda: failed[:0] + 1):
        with pytest.raises(torch_remote.RemoteError, match="aten::gather"):
            use()
    assert torch.ones(2, device="remote").sum().item() == 2


def test_what_a_discarded_call_was_to_make_is_missing_too() -> None:
    source = torch.ones(3, device="remote")
    with held_server():
        failed = bad_gather()
        made = source * 2
    with pytest.raises(torch_remote.RemoteError):
        failed.tolist()
    with pytest.raises(torch_remote.RemoteError, match="aten::gather"):
        made.tolist()
    with pytest.raises(torch_remote.RemoteError, match="aten::gather"):
        made + 1
    assert (source * 2).tolist() == [2, 2, 2]


OVERWRITES: dict[str, Callable[[torch.Tensor], object]] = {
    "zero_": lambda x: x.zero_(),
    "fill_": lambda x: x.fill_(0),
    "copy_": lambda x: x.copy_(torch.zeros(1, device="remote")),
    "upload": lambda x: x.copy_(torch.zeros(1)),
    "out": lambda x: torch.sub(*[torch.ones(1, device="remote")] * 2, out=x),
    "foreach_zero_": lambda x: torch._foreach_zero_([x]),
}


@pytest.mark.parametrize("overwrite", OVERWRITES)
def test_a_missing_value_that_is_overwritten_whole_exists(overwrite: str) -> None:
    failed = bad_gather()
    with pytest.raises(torch_remote.RemoteError):
        failed.tolist()
    OVERWRITES[overwrite](failed)
    assert failed.tolist() == [0.0]
    assert (failed + 1).tolist() == [1.0]


def test_a_missing_value_that_is_filled_in_part_raises_and_stops_nothing() -> None:
    failed = torch.gather(
        torch.ones(next(SIZES), device="remote"), 0, torch.full((4,), 10**6, device="remote")
    )
    with pytest.raises(torch_remote.RemoteError):
        failed.tolist()
    with pytest.raises(torch_remote.RemoteError, match="aten::gather"):
        failed[1:3].copy_(torch.ones(2))
    x = torch.zeros(2, device="remote")
    x.add_(1)
    torch_remote.synchronize()
    assert x.tolist() == [1, 1]
    failed.copy_(torch.arange(4.0))
    failed[1:3].copy_(torch.ones(2))
    assert failed.tolist() == [0, 1, 1, 3]


@pytest.mark.parametrize("size", [3, 0])
def test_the_target_of_a_failed_call_in_place_is_usable_as_locally(size: int) -> None:
    def run(device: str) -> object:
        target = torch.ones(size, 2, device=device)
        index = torch.full((next(SIZES),), 10**6, device=device)
        try:
            target.index_fill_(0, index, 2)
            target.sum().item()
            torch_remote.synchronize()
        except (RuntimeError, IndexError):
            pass
        return target, torch.cat([target, torch.ones(1, 2, device=device)])

    assert_same(run(DEVICE), run("cpu"))


def test_a_prefetched_batch_is_there_though_a_call_had_failed_before_it() -> None:
    x = torch.zeros(2, device="remote")
    torch_remote.synchronize()
    small, large = torch.arange(5.0), torch.arange(100_000.0)
    with held_server():
        bad_gather()
        prefetched = [small.to("remote"), large.to("remote"), torch.zeros(3, device="remote")]
    told(lambda: x.add_(1))
    assert_same([each.cpu() for each in prefetched], [small, large, torch.zeros(3)])


# --- types


def test_a_use_of_the_failed_calls_own_result_raises_the_local_type() -> None:
    failed = bad_gather()
    torch.ones(1, device="cpu")
    with pytest.raises(RuntimeError) as raised:
        failed.tolist()
    assert isinstance(raised.value, torch_remote.RemoteError)
    index = torch.full((next(SIZES),), 7, device="remote")
    looked_up = torch.nn.functional.embedding(index, torch.ones(3, 2, device="remote"))
    with pytest.raises(IndexError) as out_of_range:
        looked_up.tolist()
    assert isinstance(out_of_range.value, torch_remote.RemoteError)


def test_any_other_call_raises_a_plain_error_whose_cause_is_the_local_one() -> None:
    x = torch.zeros(2, device="remote")
    index = torch.full((next(SIZES),), 7, device="remote")
    torch.nn.functional.embedding(index, torch.ones(3, 2, device="remote"))
    error = told(lambda: x.add_(1))
    assert not isinstance(error, IndexError)
    assert isinstance(error.__cause__, IndexError)


def test_a_loop_over_getitem_does_not_end_silently() -> None:
    class Rows:
        def __getitem__(self, i: int) -> torch.Tensor:
            return torch.full((2,), float(i), device="remote").mul_(2)

    index = torch.full((next(SIZES),), 7, device="remote")
    torch.nn.functional.embedding(index, torch.ones(3, 2, device="remote"))
    with pytest.raises(torch_remote.RemoteError):
        for i, _ in enumerate(Rows()):
            assert i < 100_000


def test_out_of_memory_keeps_its_type_everywhere() -> None:
    x = torch.ones(2, device="remote")
    many = x[0].expand(2**44 + next(SIZES))
    torch.median(many)  # copies what it is given
    assert isinstance(told(lambda: x.add_(1)), torch.OutOfMemoryError)


def test_a_call_whose_result_cannot_fit_raises_itself() -> None:
    x = torch.zeros(2, device="remote")
    with pytest.raises(torch.OutOfMemoryError):
        x[0].expand(2**45 + next(SIZES)).clone()
    x.add_(1)
    torch_remote.synchronize()
    assert x.tolist() == [1, 1]


# --- calls that are waited for stop nothing


def test_a_cholesky_retry_loop_stops_nothing() -> None:
    def run(device: str) -> object:
        matrix = -torch.eye(3).to(device)
        count = torch.zeros((), device=device)
        for jitter in (0.0, 0.5, 2.0):
            try:
                root = torch.linalg.cholesky(matrix + jitter * torch.eye(3, device=device))
            except torch.linalg.LinAlgError:
                count += 1
        return root, count

    assert_same(run(DEVICE), run("cpu"))


def test_a_failed_call_that_was_waited_for_stops_nothing_in_blocking_mode() -> None:
    assert_runs(
        """
        import torch, torch_remote
        x = torch.zeros(2, device="remote")
        try:
            torch.gather(x, 0, torch.tensor([9], device="remote"))
        except RuntimeError as error:
            assert type(error) is RuntimeError, error
        x.add_(1)
        assert x.tolist() == [1, 1]
        """,
        TORCH_REMOTE_BLOCKING="1",
    )
