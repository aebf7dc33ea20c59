"""Threads: calls have one total order, and every thread sees its own results."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from helpers import DEADLINE, DEVICE, assert_runs, assert_same

THREADS = 8


def in_threads(work: Callable[[int], Any]) -> list[Any]:
    """Runs the work in all threads at once and returns the results, or raises the first error."""
    start = threading.Barrier(THREADS)

    def begin(number: int) -> Any:
        start.wait(DEADLINE)
        return work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        return [done.result(DEADLINE) for done in [pool.submit(begin, n) for n in range(THREADS)]]


def test_each_thread_gets_its_own_results() -> None:
    def work(number: int) -> float:
        x = torch.full((17,), float(number), device=DEVICE)
        for step in range(100):
            x = x + 1
            if step % 25 == 0:
                assert x[0].item() == number + step + 1
        return x.sum().item()

    assert in_threads(work) == [17.0 * (number + 100) for number in range(THREADS)]


def test_forward_and_backward_in_every_thread_match_the_cpu() -> None:
    weights = torch.randn(16, 16)

    def run(device: str, number: int) -> torch.Tensor:
        weight = weights.to(device, copy=True).requires_grad_()
        x = torch.full((4, 16), float(number) / 10, device=device)
        for _ in range(5):
            (x @ weight).tanh().sum().backward()
        assert weight.grad is not None
        return weight.grad.cpu()

    expected = [run("cpu", number) for number in range(THREADS)]
    assert_same(in_threads(lambda number: run(DEVICE, number)), expected)


def test_a_tensor_made_in_one_thread_is_used_in_others() -> None:
    shared = torch.arange(1000.0, device=DEVICE)
    assert in_threads(lambda number: (shared + number).sum().item()) == [
        499500.0 + 1000 * number for number in range(THREADS)
    ]


def test_uploads_and_downloads_in_every_thread_do_not_mix() -> None:
    def work(number: int) -> bool:
        for size in (1, 1000, 600_000):
            tensor = torch.full((size,), number, dtype=torch.int32)
            if not torch.equal(tensor.to(DEVICE).cpu(), tensor):
                return False
        return True

    assert all(in_threads(work))


def test_tensors_may_be_freed_by_another_thread() -> None:
    made = in_threads(lambda number: [torch.ones(50, device=DEVICE) * n for n in range(50)])

    def free(number: int) -> None:
        made[(number + 1) % THREADS].clear()

    in_threads(free)
    assert torch.ones(3, device=DEVICE).sum().item() == 3


def test_a_thread_may_ask_for_memory_figures_while_others_make_calls() -> None:
    x = torch.ones(64, device=DEVICE)
    end = time.monotonic() + 2

    def work(number: int) -> int:
        calls = 0
        while time.monotonic() < end:
            if number == 0:
                assert torch.remote.memory_allocated() > 0
            else:
                torch.cat([x, torch.mul(x, 2)])
            calls += 1
        return calls

    assert all(in_threads(work))
    assert x.sum().item() == 64


def test_the_current_device_is_the_threads_own() -> None:
    assert in_threads(lambda number: torch.remote.current_device()) == [0] * THREADS


def test_printing_in_every_thread_works() -> None:
    x = torch.arange(3, device=DEVICE)
    assert len(set(in_threads(lambda number: repr(x)))) == 1


def test_gradients_accumulate_in_one_leaf_from_hooks_and_threads() -> None:
    leaf = torch.ones(5, device=DEVICE, requires_grad=True)
    lock = threading.Lock()

    def work(number: int) -> None:
        with lock:
            (leaf * (number + 1)).sum().backward()

    in_threads(work)
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [sum(range(1, THREADS + 1))] * 5


def test_threads_that_share_a_generator_do_not_wait_for_each_other_for_ever() -> None:
    # PyTorch holds the generator's lock while its state is read, and takes it with the GIL held.
    assert_runs(
        """
        import torch, torch_remote
        from concurrent.futures import ThreadPoolExecutor

        generator = torch.Generator("remote")
        reads = lambda step: generator.get_state().numel()
        seeds = lambda step: generator.manual_seed(step).initial_seed()
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(lambda step: (reads if step % 2 else seeds)(step + 1), range(200)))
        """
    )
