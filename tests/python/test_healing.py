"""After an error was raised the program goes on as it would locally: poison, skipped calls and healing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from failures import SIZES, bad_gather
from helpers import assert_same

import torch_remote


def test_what_reads_nothing_of_a_failure_is_done_where_no_step_was_skipped() -> None:
    good, skipped = (torch.ones(3, device="remote") for _ in range(2))
    failed = bad_gather()
    good.add_(1)
    skipped.add_(failed)
    with pytest.raises(torch_remote.RemoteError):
        failed.item()
    assert good.tolist() == [2, 2, 2]
    assert skipped.tolist() == [1, 1, 1]


def test_a_weight_whose_update_was_skipped_raises_the_cause_once_and_is_then_as_before() -> None:
    weight = torch.ones(1, device="remote")
    weight.add_(bad_gather())
    with pytest.raises(torch_remote.RemoteError, match="aten::gather"):
        weight.tolist()
    assert weight.tolist() == [1.0]


def test_a_call_that_reads_a_skipped_weight_is_skipped_too() -> None:
    weight, other = torch.ones(1, device="remote"), torch.ones(1, device="remote")
    weight.add_(bad_gather())
    other.add_(weight)
    made = weight * 2
    with pytest.raises(torch_remote.RemoteError, match="aten::gather"):
        other.tolist()
    assert (weight.tolist(), other.tolist()) == ([1.0], [1.0])
    with pytest.raises(torch_remote.RemoteError, match="aten::gather"):
        made.tolist()  # it was never made, and says why each time


def test_of_two_failures_each_is_raised_and_heals_what_it_kept_from_running() -> None:
    first, second = bad_gather(), bad_gather().reshape(1, 1)
    a, b = torch.ones(1, device="remote"), torch.ones(1, 1, device="remote")
    a.add_(first)
    b.add_(second)
    with pytest.raises(torch_remote.RemoteError):
        second.tolist()
    assert b.tolist() == [[1.0]]
    with pytest.raises(torch_remote.RemoteError):
        a.tolist()
    assert a.tolist() == [1.0]


def test_what_the_program_has_seen_since_a_failure_is_not_undone() -> None:
    weight = torch.zeros(1, device="remote")
    bad = bad_gather()
    weight.add_(1)
    assert weight.tolist() == [1.0]
    weight.add_(bad)
    with pytest.raises(torch_remote.RemoteError, match="aten::gather"):
        weight.tolist()
    assert weight.tolist() == [1.0]


def test_an_older_failure_that_nobody_read_does_not_leave_an_update_half_done() -> None:
    momentum = torch.ones(1, device="remote")
    ignored, bad = bad_gather(), bad_gather()
    momentum.mul_(0.5)
    momentum.add_(bad)
    with pytest.raises(torch_remote.RemoteError):
        bad.tolist()
    assert momentum.tolist() == [1.0]
    with pytest.raises(torch_remote.RemoteError):
        ignored.tolist()


def test_calls_run_when_there_is_no_room_to_keep_what_they_write() -> None:
    large = [torch.zeros(40 << 20, dtype=torch.uint8, device="remote") for _ in range(8)]
    bad = bad_gather()
    for tensor in large:
        tensor.add_(1)
    with pytest.raises(torch_remote.RemoteError, match="aten::gather"):
        bad.tolist()
    assert [tensor[0].item() for tensor in large] == [1] * 8


def test_what_the_failing_call_was_to_write_stays_poisoned_until_it_is_overwritten() -> None:
    target = torch.ones(next(SIZES), device="remote")
    target.index_fill_(0, torch.tensor([10**6], device="remote"), 2)
    for _ in range(2):
        with pytest.raises(torch_remote.RemoteError, match="index_fill_"):
            target.tolist()
    target.fill_(3)
    assert set(target.tolist()) == {3.0}


@pytest.mark.parametrize(
    "overwrite", [torch._foreach_zero_, lambda all: torch._foreach_copy_(all, [all[0] * 0] * 2)]
)
def test_a_list_that_is_overwritten_whole_is_good_again(
    overwrite: Callable[[list[torch.Tensor]], object],
) -> None:
    good, bad = torch.ones(1, device="remote"), bad_gather()
    overwrite([good, bad])
    assert (good.tolist(), bad.tolist()) == ([0.0], [0.0])
    with pytest.raises(torch_remote.RemoteError):
        torch.remote.synchronize()  # all the same, it was not raised


def test_a_skipped_call_does_not_advance_the_generator() -> None:
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    skipped = torch.bernoulli(bad_gather())
    drawn = torch.rand(2, device="remote")
    with pytest.raises(torch_remote.RemoteError):
        skipped.tolist()
    assert_same(drawn.cpu(), expected)


def test_synchronize_raises_every_failure_that_nobody_has_read_once() -> None:
    torch.remote.synchronize()
    kept = [bad_gather(), bad_gather()]
    with pytest.raises(torch_remote.RemoteError, match="1 more remote calls failed"):
        torch.remote.synchronize()
    with pytest.raises(torch_remote.RemoteError) as last:
        torch.remote.synchronize()
    assert "more remote calls failed" not in str(last.value)
    torch.remote.synchronize()
    del kept


def test_a_resize_that_fails_behind_another_failure_is_told() -> None:
    x = torch.ones(4, device="remote")
    torch_remote.synchronize()
    failed = bad_gather()
    x.add_(1)
    x.resize_(2**45)
    with pytest.raises(torch_remote.RemoteError, match="resize"):
        x[:4].tolist()
    with pytest.raises(torch_remote.RemoteError, match="gather"):
        failed.item()
