"""Warnings of kernels: as on the CPU, at the line of the call, when the thread waits."""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from helpers import DEVICE, assert_runs, run_python
from torch.nn import functional as F

import torch_remote

Case = Callable[[str], object]


def ones(device: str, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(*shape, device=device, dtype=dtype)


def eye(device: str) -> torch.Tensor:
    return torch.eye(3, device=device)


def out(device: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(5, 5, device=device, dtype=dtype)


def indices(device: str) -> torch.Tensor:
    return torch.zeros(3, dtype=torch.long, device=device)


# Calls that warn whenever they are made.
CASES: dict[str, Case] = {
    "var": lambda d: ones(d, 1).var(),
    "var of rows": lambda d: ones(d, 3, 1).var(1),
    "std": lambda d: torch.std(ones(d, 1)),
    "std_mean": lambda d: torch.std_mean(ones(d, 1)),
    "var out=": lambda d: torch.var(ones(d, 2, 1), 1, out=torch.empty(2, device=d)),
    "cov": lambda d: torch.cov(ones(d, 2, 1)),
    "corrcoef": lambda d: torch.corrcoef(ones(d, 2, 1)),
    "a mask of bytes": lambda d: ones(d, 3)[ones(d, 3, dtype=torch.uint8)],
    "searchsorted": lambda d: torch.searchsorted(ones(d, 6)[::2], ones(d, 2, 2).t()),
    "index_fill_": lambda d: ones(d, 1).expand(3).index_fill_(0, indices(d)[:1], 1.0),
    "index_put_": lambda d: ones(d, 1).expand(3).index_put_((indices(d)[:1],), ones(d, 1)),
    "masked_fill_": lambda d: ones(d, 1).expand(3).masked_fill_(ones(d, 3) > 0, 1.0),
    "random_": lambda d: torch.empty(3, dtype=torch.bfloat16, device=d).random_(0, 2**10 + 1),
    "add out=": lambda d: torch.add(ones(d, 3), 1, out=out(d)),
    "add out= of another dtype": lambda d: torch.add(ones(d, 3), 1, out=out(d, torch.double)),
    "mm out=": lambda d: torch.mm(eye(d), eye(d), out=out(d)),
    "sum out=": lambda d: torch.sum(eye(d), 0, out=out(d)),
    "cat out=": lambda d: torch.cat([ones(d, 3), ones(d, 3)], out=out(d)),
    "sort out=": lambda d: torch.sort(ones(d, 3), out=(out(d), out(d, torch.long))),
    "gather out=": lambda d: torch.gather(ones(d, 3), 0, indices(d), out=out(d)),
    "nonzero out=": lambda d: torch.nonzero(ones(d, 3), out=out(d, torch.long)),
    "masked_select out=": lambda d: torch.masked_select(ones(d, 3), ones(d, 3) > 0, out=out(d)),
    "kron out=": lambda d: torch.kron(ones(d, 3), ones(d, 2), out=out(d)),
    "fft out=": lambda d: torch.fft.fft(ones(d, 4), out=out(d, torch.complex64)),
    "svdvals out=": lambda d: torch.linalg.svdvals(eye(d), out=out(d)),
}

# Calls that warn once in a process, in a session of their own.
ONCE = {
    "cast": "torch.ones(2, dtype=torch.complex64, device=d).to(torch.float32)",
    "where": "torch.where(torch.ones(3, dtype=torch.uint8, device=d), one, one)",
    "cross": "torch.cross(torch.ones(3, 3, device=d), torch.ones(3, 3, device=d))",
    "qr": "torch.qr(torch.eye(3, device=d))",
    "cholesky": "torch.cholesky(torch.eye(3, device=d))",
    "index_reduce": "one.index_reduce(0, torch.zeros(3, dtype=torch.long, device=d), one, 'prod')",
    "scatter": "one.scatter(0, torch.zeros(3, dtype=torch.long, device=d), one, reduce='add')",
    "half complex": "torch.ones(3, dtype=torch.complex32, device=d).clone()",
    "csr": "torch.eye(3, device=d).to_sparse_csr() @ torch.eye(3, device=d)",
}


def warned(call: Callable[[], object]) -> list[tuple[type[Warning], str, str, int]]:
    """What is warned of until the call's kernels are done."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        call()
        torch_remote.synchronize()
    return [(one.category, str(one.message), one.filename, one.lineno) for one in seen]


@pytest.mark.parametrize("case", CASES)
def test_a_call_warns_as_on_the_cpu_and_once(case: str) -> None:
    wanted = warned(lambda: CASES[case]("cpu"))
    assert wanted
    assert warned(lambda: CASES[case](DEVICE)) == wanted


def test_a_resized_factory_warns_once() -> None:
    (warning,) = warned(lambda: torch.arange(4, out=out(DEVICE)))
    assert "was resized" in warning[1] and warning[2] == __file__


@pytest.mark.parametrize("case", ONCE)
def test_a_call_that_warns_once_in_a_process_does_so_here(case: str) -> None:
    script = f"""
        import sys, warnings, torch, torch_remote

        def calls(d):
            one = torch.ones(3, device=d)
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                {ONCE[case]}
                {ONCE[case]}
                torch_remote.synchronize()
            return [(each.category, str(each.message), each.lineno) for each in seen]

        for each in calls(sys.argv[1] if len(sys.argv) > 1 else "DEVICE"):
            print(each)
    """
    wanted = assert_runs(script.replace("DEVICE", "cpu"))
    assert len(wanted.splitlines()) == 1
    assert assert_runs(script.replace("DEVICE", DEVICE)) == wanted


def test_a_call_warns_again_after_the_first() -> None:
    x = ones(DEVICE, 1)

    def two() -> None:
        for _ in range(2):
            x.var()

    assert len(warned(two)) == 2


def test_every_line_warns_and_each_once() -> None:
    x = ones(DEVICE, 1)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        for _ in range(3):
            x.var()
            x.var()
            torch_remote.synchronize()
    lines = [one.lineno for one in seen]
    assert len(lines) == 2 and lines[1] == lines[0] + 1
    assert {one.filename for one in seen} == {__file__}


def test_a_read_shows_what_was_warned_of_before_it() -> None:
    with pytest.warns(UserWarning, match="degrees of freedom") as seen:
        ones(DEVICE, 1).var().item()
    assert [one.filename for one in seen] == [__file__]


def test_ignored_warnings_are_not_shown() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", "var", module=__name__)
        ones(DEVICE, 1).var()
        torch_remote.synchronize()
    assert not seen


def test_a_warning_that_is_an_error_is_raised_once_by_a_wait_that_does_its_work() -> None:
    into = torch.zeros(3)
    before = into._version
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ones(DEVICE, 1).var()
        ones(DEVICE, 1).std()
        with pytest.raises(UserWarning, match="var"):
            into.copy_(ones(DEVICE, 3))
        assert into.tolist() == [1, 1, 1]
        assert into._version == before + 1
        with pytest.raises(UserWarning, match="std"):
            torch_remote.synchronize()
        assert ones(DEVICE, 2).sum().item() == 2


def test_a_failed_call_does_not_take_the_warning_before_it_away() -> None:
    with pytest.warns(UserWarning, match="degrees of freedom"), pytest.raises(IndexError):
        x = ones(DEVICE, 1)
        x.var()
        x[torch.tensor([7], device=DEVICE)].cpu()


def test_a_thread_is_shown_its_own_warnings_and_synchronize_shows_the_rest() -> None:
    called, may_end = threading.Event(), threading.Event()

    def other() -> None:
        ones(DEVICE, 1).var()
        called.set()
        may_end.wait()

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        thread = threading.Thread(target=other)
        thread.start()
        called.wait()
        ones(DEVICE, 1).sum().item()
        assert not seen
        torch_remote.synchronize()
        may_end.set()
        thread.join()
    assert len(seen) == 1


def test_what_a_thread_that_has_ended_was_not_shown_is_shown() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        thread = threading.Thread(target=lambda: ones(DEVICE, 1).var())
        thread.start()
        thread.join()
        ones(DEVICE, 1).sum().item()
    assert len(seen) == 1


def test_a_backward_warns_at_the_line_of_the_forward() -> None:
    class Varied(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
            return gradient + gradient.var()

    x = ones(DEVICE, 1).requires_grad_()
    seen = warned(lambda: Varied.apply(x).sum().backward())
    line = Varied.backward.__code__.co_firstlineno + 2
    assert [(each[2], each[3]) for each in seen] == [(__file__, line)]


def test_a_node_of_autograd_warns_at_the_line_of_its_forward() -> None:
    x = ones(DEVICE, 3).requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = x[ones(DEVICE, 3, dtype=torch.uint8)].sum()
    line = sys._getframe().f_lineno - 1
    seen = warned(y.backward)
    assert [(each[2], each[3]) for each in seen] == [(__file__, line)]


def test_a_replayed_graph_warns_at_the_line_that_was_recorded() -> None:
    x = ones(DEVICE, 1)
    graph = torch_remote.Graph()
    with graph:
        x.var()
    seen = warned(lambda: (graph.replay(), graph.replay()))
    line = sys._getframe().f_lineno - 2
    assert [(each[2], each[3]) for each in seen] == [(__file__, line)] * 2


def test_blocking_warns_at_the_call() -> None:
    assert_runs(
        """
        import warnings, torch, torch_remote
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            torch.ones(1, device="remote").var()
            assert len(seen) == 1, seen
        """,
        TORCH_REMOTE_BLOCKING="1",
    )


@pytest.mark.parametrize("blocking", ["0", "1"])
def test_python_w_error_ends_the_program(blocking: str) -> None:
    script = "import torch, torch_remote; torch.ones(1, device='remote').var().item(); print('on')"
    variables = {"PYTHONWARNINGS": "error::UserWarning", "TORCH_REMOTE_BLOCKING": blocking}
    done = run_python(script, anew=True, **variables)
    assert done.returncode == 1 and "on" not in done.stdout.split(), done.stderr
    assert "UserWarning: var(): degrees of freedom" in done.stderr.splitlines()[-1]


def test_at_exit_what_was_not_shown_is_printed(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text("import torch, torch_remote\ntorch.ones(1, device='remote').var()\n")

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *options, str(script)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = run()
    assert done.returncode == 0
    assert done.stderr.count(f"{script}:2: UserWarning: var()") == 1
    failed = run("-W", "error::UserWarning")
    assert failed.returncode == 1
    assert failed.stderr.count("UserWarning: var()") == 1
    assert run("-W", "ignore").stderr == ""


def test_an_alert_of_a_deterministic_form_comes_once() -> None:
    def put(device: str) -> object:
        return ones(device, 3).put_(indices(device), ones(device, 3))

    def unpool(device: str) -> object:
        pooled, where = F.max_pool2d(ones(device, 1, 1, 4, 4), 2, return_indices=True)
        return F.max_unpool2d(pooled, where, 2)

    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        for call in (put, unpool):
            alerts = [warned(partial(call, device)) for device in (DEVICE, "cpu")]
            categories = [[category for category, *_ in each] for each in alerts]
            assert categories == [[UserWarning]] * 2
    finally:
        torch.use_deterministic_algorithms(False)
