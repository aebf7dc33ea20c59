"""A failed call stops its thread and no other, on each machine, and nothing is lost at the end."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from failures import SIZES, bad_gather, held_server, in_thread, told
from helpers import run_python, serving, wait_until

import torch_remote

# --- threads


def test_another_threads_counter_is_whole() -> None:
    hist = torch.zeros((), device="remote")
    begin, stop = threading.Event(), threading.Event()

    def count() -> None:
        begin.wait()
        for _ in range(500):
            hist.add_(1)
        stop.set()

    counter = threading.Thread(target=count)
    counter.start()
    x = torch.zeros(2, device="remote")
    bad_gather()
    begin.set()
    told(lambda: x.add_(1))
    counter.join()
    assert stop.is_set()
    assert hist.item() == 500


def test_a_thread_that_ends_without_having_been_told_is_told_of_by_synchronize() -> None:
    torch_remote.synchronize()
    assert in_thread(bad_gather) == []
    assert torch.ones(2, device="remote").sum().item() == 2  # this thread is not stopped
    with pytest.raises(torch_remote.RemoteError, match="aten::gather"):
        torch_remote.synchronize()
    torch_remote.synchronize()


def test_threads_that_ended_stopped_are_forgotten_once_they_were_told_of() -> None:
    x = torch.zeros(2, device="remote")
    for _ in range(5):
        assert in_thread(bad_gather) == []
    x.add_(1)
    for left in range(4, -1, -1):
        with pytest.raises(torch_remote.RemoteError, match="aten::gather") as raised:
            torch_remote.synchronize()
        assert (f"calls of {left} more" in str(raised.value)) == (left > 0)
    torch_remote.synchronize()

    def are_forgotten() -> bool:
        x.add_(0)  # forgets the threads that have ended
        return not torch_remote._C.has_failure()

    assert wait_until(are_forgotten)  # join() returns a moment before a thread has ended
    assert x.tolist() == [1, 1]


def test_a_stopped_thread_does_not_fill_what_another_has_made() -> None:
    x = torch.zeros(2, device="remote")
    torch_remote.synchronize()
    made: list[torch.Tensor] = []
    with held_server():
        bad_gather()
        in_thread(lambda: made.append(x + 1))
        made[0].zero_()
    with pytest.raises(torch_remote.RemoteError):
        made[0].tolist()
    assert made[0].tolist() == [1, 1]


def test_a_thread_that_uses_what_anothers_failed_call_was_to_make_is_told_the_cause() -> None:
    made: list[torch.Tensor] = []
    in_thread(lambda: made.append(bad_gather()))
    counter = torch.zeros((), device="remote")
    error = told(lambda: [made[0] + 1, counter.item()])
    assert "aten::gather" in str(error)
    counter.add_(1)
    assert counter.item() == 1
    torch_remote.synchronize()  # the cause was raised already


class FailsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] * bad_gather()


def test_a_failure_inside_backward_stops_the_thread_that_called_it_and_no_other() -> None:
    """Autograd makes the calls of both in one thread."""
    weights = [torch.ones(3, device="remote", requires_grad=True) for _ in range(2)]
    counts = [torch.zeros((), device="remote") for _ in range(2)]
    outcomes: list[str] = ["", ""]
    together = threading.Barrier(2)

    def work(i: int) -> None:
        together.wait()
        done = 0
        try:
            for n in range(40):
                value = FailsInBackward.apply(weights[i]) if i == 0 and n == 20 else weights[i] * 2
                value.sum().backward()
                counts[i].add_(1)
                done += 1
            torch_remote.synchronize()
        except torch_remote.RemoteError as error:
            outcomes[i] = str(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert "aten::gather" in outcomes[0]
    assert counts[0].item() == 20
    assert counts[1].item() == 40
    assert weights[1].grad is not None
    assert weights[1].grad.tolist() == [80.0] * 3


def test_a_failure_in_a_nested_backward_or_a_hook_stops_the_one_who_called() -> None:
    class Nested(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
            context.save_for_backward(x)
            return x * 1

        @staticmethod
        def backward(context: Any, *gradients: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                inner = context.saved_tensors[0].detach().requires_grad_()
                FailsInBackward.apply(inner).sum().backward()
            return gradients[0]

    for fail in ("nested", "hook"):
        x = torch.ones(2, device="remote", requires_grad=True)
        count = torch.zeros((), device="remote")
        if fail == "hook":
            x.register_hook(lambda gradient: gradient * bad_gather())
        with pytest.raises(torch_remote.RemoteError, match="aten::gather"):
            (Nested.apply(x) if fail == "nested" else x * 2).sum().backward()
            count.add_(1)
            count.item()
        assert count.item() == 0
        assert x.grad is None


# --- machines


def test_of_two_servers_each_stops_on_its_own(tmp_path: Path) -> None:
    listen = f"unix://{tmp_path}/server.sock"
    with serving(listen, "--device", "cpu") as url, torch_remote.connect(url) as machine:
        other = torch.device(machine.devices[0])
        count = torch.zeros((), device=other)
        x = torch.zeros(2, device="remote:0")
        failed = bad_gather()
        with pytest.raises(
            torch_remote.RemoteError, match="on other machines meanwhile stays done"
        ):
            count.add_(1)
            failed.to(other)
        assert count.item() == 1
        assert x.tolist() == [0, 0]
        with pytest.raises(torch_remote.RemoteError):
            failed.to(other)


def test_the_end_of_a_with_block_raises_what_was_not_raised_in_it() -> None:
    with (
        pytest.raises(torch_remote.RemoteError, match="aten::gather"),
        torch_remote.connect("local") as machine,
    ):
        x = torch.zeros(next(SIZES), device=machine.devices[0])
        torch.gather(x, 0, torch.tensor([10**6], device=x.device))
    assert machine.status()["state"] == "stopped"
    with torch_remote.connect("local") as machine:
        torch.zeros(2, device=machine.devices[0])
        machine.stop()  # twice is as once


def test_a_failure_that_is_printed_when_a_machine_is_stopped_makes_the_status_1() -> None:
    done = run_python("""
        import time, torch, torch_remote
        machine = torch_remote.connect("local")
        x = torch.zeros(2, device="remote")
        torch.gather(x, 0, torch.tensor([9], device="remote"))
        while not torch_remote._C.has_failure():
            time.sleep(0.01)
        machine.stop()
    """)
    assert done.returncode == 1
    assert done.stderr.count("1 remote call failed and its error was never raised") == 1


def test_at_exit_a_stopped_thread_is_told_of_on_stderr_with_status_1() -> None:
    done = run_python("""
        import torch, torch_remote
        x = torch.zeros(2, device="remote")
        torch.gather(x, 0, torch.tensor([9], device="remote"))
    """)
    assert done.returncode == 1
    assert "1 remote call failed and its error was never raised" in done.stderr
    assert "aten::gather" in done.stderr


def test_a_thread_that_lost_calls_for_anothers_failure_is_told_of() -> None:
    """The failure was raised in the thread whose call failed; the other's calls are lost too."""
    count = torch.zeros((), device="remote")
    torch_remote.synchronize()
    with held_server():
        failed = bad_gather()
        assert in_thread(lambda: (failed + 1, count.add_(1))) == []
    with pytest.raises(torch_remote.RemoteError):
        failed.tolist()
    with pytest.raises(torch_remote.RemoteError, match="aten::gather"):
        torch_remote.synchronize()
    torch_remote.synchronize()
    assert count.item() == 0
