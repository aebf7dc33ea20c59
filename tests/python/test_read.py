"""torch_remote.read(): values that arrive while the program goes on."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from failures import bad_gather
from helpers import DEADLINE, assert_runs, assert_same, run_python

import torch_remote

SIZES = [0, 1, 5, 16_385, 300_000, 3_000_000]

LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "whole": lambda x: x,
    "transposed": lambda x: x.t(),
    "strided": lambda x: x[1::2, ::3],
    "expanded": lambda x: x[:1].expand(5, 7),
    "scalar": lambda x: x[1, 2],
    "conjugate": lambda x: torch.complex(x, x + 1).conj(),
    "negative": lambda x: torch.complex(x, x + 1).conj().imag,
    "half": lambda x: x.bfloat16(),
    "bool": lambda x: x > 3,
}


def test_a_read_waits_for_nothing_and_its_result_waits_once() -> None:
    x = torch.arange(1000.0, device="remote")
    torch.remote.synchronize()
    with torch_remote.count() as counted:
        future = torch_remote.read(x + 1)
    assert counted.syncs == 0
    with torch_remote.count() as counted:
        value = future.result()
        assert future.result() is value and future.wait() is value
    assert counted.syncs <= 1  # 0 if the value was here already
    assert value.device.type == "cpu" and future.done()
    assert_same(value, torch.arange(1000.0) + 1)


@pytest.mark.parametrize("size", SIZES)
def test_values_of_every_size_arrive(size: int) -> None:
    source = torch.randn(size)
    assert_same(torch_remote.read(source.to("remote")).result(), source)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_views_of_any_layout_arrive(layout: str) -> None:
    base = torch.arange(35.0).reshape(5, 7)
    there = base.to("remote")
    assert_same(
        torch_remote.read(LAYOUTS[layout](there)).result(), LAYOUTS[layout](base).resolve_conj()
    )


def test_the_value_is_that_of_the_place_in_the_program() -> None:
    x = torch.ones(300_000, device="remote")
    future = torch_remote.read(x)
    x.zero_()
    assert future.result().min() == 1 and x.max().item() == 0


@pytest.mark.parametrize("norm", [torch.native_batch_norm, torch.batch_norm])
def test_a_batch_norm_behind_the_read_does_not_change_its_value(norm: Any) -> None:
    """Its schema does not say that it writes the statistics."""
    x = torch.randn(2, 1_000_000, device="remote")
    mean, var = torch.zeros(1_000_000, device="remote"), torch.ones(1_000_000, device="remote")
    before = torch_remote.read(torch.zeros(64 << 20, dtype=torch.uint8, device="remote"))
    future = torch_remote.read(mean)
    rest = (False,) if norm is torch.batch_norm else ()
    norm(x, None, None, mean, var, True, 1.0, 1e-5, *rest)
    assert not future.result().any()
    assert mean.any().item()
    before.result()


def test_the_value_has_no_graph_and_is_independent_memory() -> None:
    x = torch.ones(3, device="remote", requires_grad=True)
    value = torch_remote.read(x * 2).result()
    assert not value.requires_grad and value.grad_fn is None
    value.add_(1).resize_(0)
    cpu = torch.ones(3)
    copied = torch_remote.read(cpu)
    cpu.zero_()
    assert copied.done() and copied.result().tolist() == [1, 1, 1]


def test_a_dropped_future_and_a_dropped_tensor_are_harmless() -> None:
    for _ in range(50):
        torch_remote.read(torch.ones(300_000, device="remote"))
    kept = torch_remote.read(torch.full((300_000,), 7.0, device="remote"))
    assert kept.result().min() == 7


def test_many_reads_arrive_in_any_order() -> None:
    x = torch.arange(3000.0, device="remote")
    futures = [torch_remote.read(x[i]) for i in range(3000)]
    assert [int(f.result()) for f in reversed(futures)] == list(reversed(range(3000)))


def test_done_becomes_true_without_a_result() -> None:
    future = torch_remote.read(torch.ones(5, device="remote"))
    end = time.monotonic() + DEADLINE
    while not future.done():
        assert time.monotonic() < end
        time.sleep(0.001)
    with torch_remote.count() as counted:
        future.result()
    assert counted.syncs == 0
    assert repr(future) == "<torch_remote.ReadFuture done>"


def test_a_failed_call_is_raised_by_result_and_not_before() -> None:
    for _ in range(3):  # known when the read is made, or not
        bad = bad_gather()
        time.sleep(0.01)
        future = torch_remote.read(bad)
        for _ in range(2):
            with pytest.raises(torch_remote.RemoteError, match="gather"):
                future.result()
        assert future.done()
    assert torch_remote.read(torch.ones(2, device="remote")).result().tolist() == [1, 1]


def test_another_thread_may_take_the_result() -> None:
    futures = [torch_remote.read(torch.full((9,), float(i), device="remote")) for i in range(8)]
    got: list[float] = []
    threads = [
        threading.Thread(target=lambda f=f: got.append(f.result()[0].item())) for f in futures
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == list(range(8))


def test_what_is_no_strided_tensor_is_refused() -> None:
    with pytest.raises(TypeError, match="takes a tensor, not list"):
        torch_remote.read([1])  # type: ignore[arg-type]
    parts = [torch.ones(2, device="remote"), torch.ones(3, device="remote")]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged)
    with pytest.raises(NotImplementedError, match=r"values\(\)"):
        torch_remote.read(nested)
    assert torch_remote.read(nested.values()).result().tolist() == [1] * 5


def test_a_tensor_without_a_value_is_refused() -> None:
    x = torch.ones(2, 3, device="remote")
    with pytest.raises(NotImplementedError, match="read what the transformed function returns"):
        torch.func.vmap(lambda row: (torch_remote.read(row), row)[1])(x)
    with (
        torch._subclasses.FakeTensorMode() as mode,
        pytest.raises(NotImplementedError, match="read what"),
    ):
        torch_remote.read(mode.from_tensor(x))
    assert torch_remote.read(torch._efficientzerotensor(3, device="remote")).result().sum() == 0


# --- asyncio


def test_many_tasks_await_many_values_and_one_value_twice() -> None:
    x = torch.arange(2000.0, device="remote")

    async def program() -> list[int]:
        shared = torch_remote.read(x[7])

        async def value(i: int) -> int:
            return int(await torch_remote.read(x[i])) + int(await shared)

        return await asyncio.gather(*(value(i) for i in range(2000)))

    assert asyncio.run(program()) == [i + 7 for i in range(2000)]
    assert torch_remote._reads._waiters == {}


def test_an_awaited_failure_is_raised_in_its_task() -> None:
    async def program() -> None:
        good = torch_remote.read(torch.ones(1, device="remote"))
        future = torch_remote.read(bad_gather())
        with pytest.raises(torch_remote.RemoteError, match="gather"):
            await future
        assert (await good).item() == 1

    asyncio.run(program())


STOPPED = """
    import asyncio, os, signal, torch, torch_remote
    x = torch.ones(5, device="remote")
    torch.remote.synchronize()
    pid = torch_remote.machines()[0].status()["pid"]
    os.kill(pid, signal.SIGSTOP)
    future = torch_remote.read(x)
    assert not future.done() and "pending" in repr(future)
"""


def test_a_task_awaits_a_value_while_the_loop_goes_on() -> None:
    assert_runs(
        STOPPED
        + """
    async def program():
        waiting = asyncio.create_task(asyncio.wait_for(future, 60))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not waiting.done()
        os.kill(pid, signal.SIGCONT)
        return await waiting
    with torch_remote.count() as counted:
        assert asyncio.run(program()).tolist() == [1] * 5
    assert counted.syncs == 0
    """
    )


def test_a_timeout_ends_the_wait_and_the_value_still_arrives() -> None:
    assert_runs(
        STOPPED
        + """
    for timeout in (0, 0.1):
        try:
            future.result(timeout=timeout)
            raise SystemExit("it did not stop")
        except TimeoutError:
            pass
    async def limited():
        try:
            await asyncio.wait_for(future, 0.1)
            raise SystemExit("it did not stop")
        except asyncio.TimeoutError:
            pass
    asyncio.run(limited())
    os.kill(pid, signal.SIGCONT)
    assert future.result(timeout=60).tolist() == [1] * 5
    """
    )


@pytest.mark.parametrize("wait", ["future.result()", "asyncio.run(awaited())"])
def test_a_lost_session_is_raised(wait: str) -> None:
    done = run_python(
        STOPPED
        + f"""
    import threading
    async def awaited():
        return await future
    threading.Timer(0.2, os.kill, (pid, signal.SIGKILL)).start()
    try:
        {wait}
    except torch_remote.SessionLost:
        print("lost", future.done())
    """
    )
    assert done.stdout.strip() == "lost True", done.stderr


def test_a_program_may_end_with_reads_pending() -> None:
    assert_runs(
        """
        import torch, torch_remote
        x = torch.ones(3_000_000, device="remote")
        futures = [torch_remote.read(x + i) for i in range(5)]
        """
    )
