"""Errors: at the call with the CPU's text, or later with the operator and the server."""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable

import pytest
import torch
from failures import bad_gather, hear_of_failure, held_server
from helpers import DEVICE, assert_runs

import torch_remote

MISTAKES: dict[str, Callable[[str], object]] = {
    "shapes": lambda device: torch.ones(2, 3, device=device) + torch.ones(4, device=device),
    "mm": lambda device: torch.ones(2, 3, device=device) @ torch.ones(2, 3, device=device),
    "view": lambda device: torch.ones(2, 3, device=device).view(5),
    "dim": lambda device: torch.ones(2, 3, device=device).sum(4),
    "index": lambda device: torch.ones(2, 3, device=device)[5],
    "cat": lambda device: torch.cat(
        [torch.ones(2, 3, device=device), torch.ones(4, device=device)]
    ),
    "integer_division_in_place": lambda device: torch.ones(2, dtype=torch.int, device=device).div_(
        2
    ),
    "leaf_in_place": lambda device: torch.ones(2, device=device, requires_grad=True).add_(1),
    "item_of_many": lambda device: torch.ones(2, device=device).item(),
    "bool_of_many": lambda device: bool(torch.ones(2, device=device)),
    "conv": lambda device: torch.conv2d(
        torch.ones(1, 3, 8, 8, device=device), torch.ones(4, 2, 3, 3, device=device)
    ),
    "layer_norm": lambda device: torch.layer_norm(torch.ones(2, 3, device=device), (4,)),
    "masked_fill_": lambda device: torch.ones(2, 3, device=device).masked_fill_(
        torch.ones(4, device=device, dtype=torch.bool), 0
    ),
    "masked_scatter_": lambda device: torch.ones(2, 3, device=device).masked_scatter_(
        torch.ones(4, device=device, dtype=torch.bool), torch.ones(9, device=device)
    ),
    "index_fill_": lambda device: torch.ones(2, 3, device=device).index_fill_(
        4, torch.tensor([0], device=device), 1
    ),
    "index_fill_complex": lambda device: torch.ones(2, 3, device=device).index_fill_(
        0, torch.tensor([0], device=device), 1j
    ),
    "index_put_": lambda device: torch.ones(2, 3, device=device).index_put_(
        (torch.tensor([0, 1], device=device),), torch.ones(4, device=device)
    ),
    "put_": lambda device: torch.ones(2, 3, device=device).put_(
        torch.tensor([0, 1], device=device), torch.ones(3, device=device)
    ),
    "bernoulli_on_expanded": lambda device: torch.ones(1, device=device).expand(3).bernoulli_(),
    "put_on_expanded": lambda device: (
        torch.ones(1, device=device)
        .expand(3)
        .put_(torch.tensor([0, 1], device=device), torch.ones(2, device=device))
    ),
    "masked_scatter_on_expanded": lambda device: (
        torch.ones(1, device=device)
        .expand(3)
        .masked_scatter_(
            torch.tensor([True, False, True], device=device), torch.ones(2, device=device)
        )
    ),
    "scatter_reduce_": lambda device: torch.ones(2, 3, device=device).scatter_reduce_(
        0,
        torch.zeros(2, 4, device=device, dtype=torch.long),
        torch.ones(2, 4, device=device),
        "sum",
    ),
    "mm_of_two_dtypes": lambda device: (
        torch.ones(2, 3, device=device) @ torch.ones(3, 2, device=device, dtype=torch.float64)
    ),
    "linear_of_two_dtypes": lambda device: torch.nn.Linear(3, 2, device=device)(
        torch.ones(2, 3, device=device, dtype=torch.float16)
    ),
    "bmm_of_two_dtypes": lambda device: torch.bmm(
        torch.ones(1, 2, 3, device=device), torch.ones(1, 3, 2, device=device, dtype=torch.bfloat16)
    ),
    "out_of_another_dtype": lambda device: torch.multinomial(
        torch.ones(3, device=device), 2, out=torch.ones(2, device=device)
    ),
    "out_that_overlaps_itself": lambda device: torch.index_select(
        torch.ones(3, device=device),
        0,
        torch.tensor([0, 1], device=device),
        out=torch.ones(1, device=device).expand(3),
    ),
    "out_that_overlaps_an_input": lambda device: (
        lambda x: torch.masked_select(x[:3], x[:3] > 0, out=x[1:4])
    )(torch.ones(6, device=device)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_raises_at_the_call_what_the_cpu_raises(mistake: str) -> None:
    with pytest.raises(Exception) as expected:
        MISTAKES[mistake]("cpu")
    with pytest.raises(expected.type) as raised:
        MISTAKES[mistake](DEVICE)
    assert str(raised.value) == str(expected.value)


REFUSED_BY_THE_KERNEL: dict[str, Callable[[str], torch.Tensor]] = {
    "softmax_of_integers": lambda device: torch.ones(3, dtype=torch.int, device=device).softmax(0),
    "mm_of_two_dtypes": lambda device: torch.mm(
        torch.ones(2, 2, device=device), torch.ones(2, 2, device=device, dtype=torch.double)
    ),
}


@pytest.mark.parametrize("mistake", REFUSED_BY_THE_KERNEL)
def test_what_only_the_kernel_refuses_is_raised_by_the_read_and_then_by_the_call(
    mistake: str,
) -> None:
    with pytest.raises(RuntimeError) as expected:
        REFUSED_BY_THE_KERNEL[mistake]("cpu")
    with pytest.raises(RuntimeError, match=re.escape(str(expected.value))):
        REFUSED_BY_THE_KERNEL[mistake](DEVICE).tolist()
    for _ in range(2):
        with pytest.raises(expected.type) as raised:
            REFUSED_BY_THE_KERNEL[mistake](DEVICE)
        assert type(raised.value) is expected.type
        assert str(raised.value) == str(expected.value)


def test_a_signature_that_failed_is_waited_for_until_it_goes_well(
    sync_count: Callable[[Callable[[], object]], int],
) -> None:
    source = torch.ones(4, device="remote")
    good, bad = (torch.tensor([[at]], device="remote")[0] for at in (1, 7))
    with pytest.raises(torch_remote.RemoteError):
        torch.gather(source, 0, bad).tolist()
    assert sync_count(lambda: torch.gather(source, 0, good)) == 1
    assert sync_count(lambda: torch.gather(source, 0, good)) == 0


def test_a_call_that_was_skipped_is_not_waited_for_the_next_time(
    sync_count: Callable[[Callable[[], object]], int],
) -> None:
    with held_server():
        skipped = bad_gather().mul(3).cosh()
    with pytest.raises(torch_remote.RemoteError, match="aten::gather"):
        skipped.tolist()
    fine = torch.ones(1, device="remote")
    assert sync_count(lambda: fine.mul(3).cosh()) == 0


def test_the_exceptions_derive_as_documented() -> None:
    assert issubclass(torch_remote.RemoteError, RuntimeError)
    for error in (torch_remote.SessionLost, torch_remote.ProtocolError):
        assert issubclass(error, torch_remote.RemoteError)
    assert issubclass(torch_remote.ConnectionError, torch_remote.RemoteError)
    assert issubclass(torch_remote.ConnectionError, builtins.ConnectionError)


# Promise 10.
def test_a_remote_failure_is_raised_at_the_read_and_names_the_operator() -> None:
    failed = bad_gather()
    with pytest.raises(torch_remote.RemoteError, match=r"aten::gather.*remote:0") as raised:
        failed.tolist()
    assert "out of bounds" in str(raised.value)


def test_what_follows_a_failure_carries_the_first_cause() -> None:
    with held_server():
        later = (bad_gather() * 2).exp()
    with pytest.raises(torch_remote.RemoteError, match="aten::gather"):
        later.sum().item()


def test_the_call_after_a_failure_that_is_known_carries_its_cause() -> None:
    failed = bad_gather()
    hear_of_failure()
    with pytest.raises(torch_remote.RemoteError, match="aten::gather"):
        failed * 2


def test_values_that_were_there_before_stay_good() -> None:
    before = torch.arange(3, device="remote")
    failed = bad_gather()
    with pytest.raises(torch_remote.RemoteError):
        failed.cpu()
    assert before.tolist() == [0, 1, 2]


def test_an_error_nobody_read_is_raised_by_synchronize() -> None:
    assert_runs("""
        import torch, torch_remote
        value = torch.gather(
            torch.ones(3, device="remote"), 0, torch.tensor([7], device="remote"))
        try:
            torch.remote.synchronize()
        except torch_remote.RemoteError as error:
            assert "aten::gather" in str(error), error
        else:
            raise SystemExit("nothing was raised")
    """)


def test_blocking_mode_raises_at_the_call_what_the_cpu_raises() -> None:
    assert_runs(
        """
        import torch, torch_remote
        source, index = torch.ones(3, 2), torch.tensor([7])
        errors = []
        for device in ("cpu", "remote"):
            try:
                torch.nn.functional.embedding(index.to(device), source.to(device))
            except Exception as error:
                errors.append((type(error), str(error)))
        assert len(errors) == 2 and errors[0] == errors[1], errors
        """,
        TORCH_REMOTE_BLOCKING="1",
    )


def test_a_dead_server_is_session_lost_with_the_first_cause_every_time() -> None:
    assert_runs("""
        import os, signal, torch, torch_remote
        value = torch.ones(3, device="remote")
        value.tolist()
        os.kill(int(torch_remote.machines()[0].status()["pid"]), signal.SIGKILL)
        messages = []
        for _ in range(2):
            try:
                value.tolist()
            except torch_remote.SessionLost as error:
                messages.append(str(error))
        assert len(messages) == 2 and messages[0] == messages[1], messages
    """)


def test_a_storage_larger_than_any_server_is_refused_at_the_call() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="bytes"):
        torch.empty(10**14, device=DEVICE)
    assert torch.ones(2, device=DEVICE).sum().item() == 2


# 2**47 bytes: more than a process can have, and fewer than the client refuses.
NO_MEMORY: dict[str, Callable[[], torch.Tensor]] = {
    "fill": lambda: torch.empty(2**47, dtype=torch.uint8, device=DEVICE).fill_(1)[:1],
    "output": lambda: (torch.ones(2**23, 1, device=DEVICE) + torch.ones(2**22, device=DEVICE))[0],
    "asked": lambda: torch.repeat_interleave(torch.tensor([2**44], device=DEVICE)),
}


@pytest.mark.skipif(DEVICE == "cpu", reason="the CPU raises a RuntimeError")
@pytest.mark.parametrize("way", NO_MEMORY)
def test_host_memory_that_the_server_has_not_is_an_out_of_memory_error(way: str) -> None:
    with pytest.raises(torch.OutOfMemoryError, match="allocate"):
        NO_MEMORY[way]().tolist()
    assert torch.ones(2, device=DEVICE).sum().item() == 2


@pytest.mark.parametrize("is_in_place", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
@pytest.mark.parametrize("operands", ["no numbers", "two numbers", "two tensors", "other sizes"])
def test_lists_that_do_not_agree_are_refused_at_the_call(
    operands: str, dtype: torch.dtype, is_in_place: bool
) -> None:
    def run(device: str) -> str:
        first = [torch.ones(3, 4, dtype=dtype, device=device)]
        second = {
            "no numbers": [],
            "two numbers": [1, 2],
            "two tensors": first * 2,
            "other sizes": [torch.ones(5, 4, dtype=dtype, device=device)],
        }[operands]
        with pytest.raises(RuntimeError) as caught:
            (torch._foreach_add_ if is_in_place else torch._foreach_add)(first, second)
        assert type(caught.value) is RuntimeError
        return str(caught.value)

    assert run(DEVICE) == run("cpu")


def test_a_list_that_cannot_hold_its_results_is_refused_at_the_call() -> None:
    def run(device: str) -> str:
        integers = [torch.arange(3, device=device)]
        with pytest.raises(RuntimeError) as caught:
            torch._foreach_div_(integers, integers)
        assert type(caught.value) is RuntimeError
        return str(caught.value)

    assert run(DEVICE) == run("cpu")
