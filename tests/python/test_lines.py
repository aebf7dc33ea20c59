"""A late error names the user's line that made the call, and has the type of a local error."""

from __future__ import annotations

import inspect
import itertools
import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from helpers import assert_runs, run_python

import torch_remote

SIZES = itertools.count(2000)  # not used in other files: a signature that failed is waited for


def here(offset: int = 0) -> str:
    """The caller's line, as in an error."""
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    caller = frame.f_back
    return f"{caller.f_code.co_filename}:{caller.f_lineno + offset} in {caller.f_code.co_qualname}"


def far_away() -> torch.Tensor:
    return torch.tensor([10**6], device="remote")


def fresh(*sizes: int, **options: bool) -> torch.Tensor:
    """Of a size that no test has used, so that no call is waited for."""
    return torch.ones(next(SIZES), *sizes, device="remote", **options)


def error_of(read: Callable[[], object]) -> str:
    with pytest.raises(torch_remote.RemoteError) as raised:
        read()
    return str(raised.value)


def test_a_forward_call_names_its_line_and_not_that_of_the_read() -> None:
    source, index = fresh(), far_away()
    line, failed = here(), torch.gather(source, 0, index)
    later = failed * 2
    text = error_of(later.tolist)
    assert f", called at {line}: " in text
    assert re.search(r"aten::gather on remote:0 \(.*, session [0-9a-f]+\), called at", text)


class Bag(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(next(SIZES), 2, device="remote")

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        self.line = here(1)
        return self.table(index)


def test_frames_of_torch_are_passed_over() -> None:
    bag = Bag()
    failed = bag(far_away())
    assert f", called at {bag.line}: " in error_of(failed.tolist)


# Promise 10.
def test_a_call_of_the_backward_names_the_forward_line() -> None:
    source, index = fresh(requires_grad=True), torch.zeros(1, dtype=torch.long, device="remote")
    other = source * 2
    line, taken = here(), torch.gather(other, 0, index)
    loss = (taken * 3).sum()
    index.data.fill_(10**6)  # unknown to autograd: only the backward's kernel notices
    loss.backward()
    assert source.grad is not None
    assert f", in the backward of the call at {line}: " in error_of(source.grad.tolist)


def test_a_backward_of_the_users_own_names_its_own_line() -> None:
    lines = []

    class Mine(torch.autograd.Function):
        @staticmethod
        def forward(context: object, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(context: object, *gradients: torch.Tensor) -> torch.Tensor:
            lines.append(here(1))
            return torch.gather(gradients[0], 0, far_away()).expand_as(gradients[0])

    source = fresh(requires_grad=True)
    Mine.apply(source).sum().backward()
    assert source.grad is not None
    assert f", called at {lines[0]}: " in error_of(source.grad.tolist)


# Promise 10.
def test_a_call_of_an_optimizer_names_the_line_of_its_step() -> None:
    weight = fresh(2, requires_grad=True)
    weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    # Unknown to PyTorch: only the kernel notices that the gradient is too small.
    weight.grad.untyped_storage().resize_(4)
    line, _ = here(), optimizer.step()
    assert f", called at {line}: " in error_of(weight.tolist)


def test_a_resize_that_fails_names_its_line() -> None:
    x = fresh()
    x.add_(1)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        print(line := here(), x.untyped_storage().resize_(2**47))
    assert "resize on remote:0 " in str(caught.value)
    assert f", called at {line}: " in str(caught.value)


def test_the_line_is_known_after_many_more_calls() -> None:
    """A failure whose thread is not told while other threads go on."""
    lines: list[str] = []
    failed: list[torch.Tensor] = []

    def work() -> None:
        lines.append(here())
        failed.append(torch.gather(fresh(), 0, far_away()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    x = torch.ones(1, device="remote")
    for _ in range(140_000):
        x.neg_()
    assert f"{lines[0].rpartition(':')[0]}:" in error_of(failed[0].tolist)
    torch_remote.synchronize()


def test_threads_have_lines_of_their_own() -> None:
    texts: dict[str, str] = {}

    def work() -> None:
        line, failed = here(), torch.gather(fresh(), 0, far_away())
        texts[line] = error_of(failed.tolist)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ((line, text),) = texts.items()
    assert f", called at {line}: " in text


def test_code_that_was_made_from_a_string_has_its_own_lines() -> None:
    for blank in range(3):
        names = {"torch": torch, "source": fresh(), "index": far_away()}
        exec("\n" * blank + "failed = torch.gather(source, 0, index)", names)
        assert f", called at <string>:{blank + 1} in <module>: " in error_of(
            names["failed"].tolist  # type: ignore[attr-defined]
        )


TYPES: dict[type[Exception], Callable[[], torch.Tensor]] = {
    IndexError: lambda: torch.nn.functional.embedding(far_away(), fresh(2)),
    NotImplementedError: lambda: fresh().int().softmax(0),
    RuntimeError: lambda: torch.gather(fresh(), 0, far_away()),
}


@pytest.mark.parametrize("expected", TYPES)
def test_a_late_error_has_the_type_of_a_local_one(expected: type[Exception]) -> None:
    failed = TYPES[expected]()
    with pytest.raises(expected) as raised:
        failed.tolist()
    assert isinstance(raised.value, torch_remote.RemoteError)


def test_every_kind_of_error_is_a_remote_error_too() -> None:
    from torch_remote import _errors

    exact = (IndexError, ValueError, TypeError, NotImplementedError, torch.OutOfMemoryError)
    for kind in (*exact, torch.linalg.LinAlgError, torch.AcceleratorError):
        (both,) = (one for one in _errors.BY_KIND if issubclass(one, kind))
        assert issubclass(both, torch_remote.RemoteError)
        assert str(both("text")) == "text"


FAILING = """
import torch, torch_remote
def forward(x, at):
    return torch.gather(x, 0, torch.tensor([at], device="remote"))
value = forward(torch.ones(3, device="remote"), 7)
"""


def test_an_error_nobody_read_is_printed_at_exit() -> None:
    done = run_python(
        FAILING
        + "import threading\n"
        + "work = lambda: forward(torch.ones(4, device='remote'), 8)\n"
        + "other = threading.Thread(target=work)\n"
        + "other.start(); other.join()"
    )
    assert done.returncode == 1
    assert re.fullmatch(
        r"torch_remote: 2 remote calls failed and their errors were never raised:\n"
        r"  aten::gather on remote:0 \(.*, session [0-9a-f]+\), "
        r"called at <string>:4 in forward: .*\n"
        r"  and 1 more\n",
        done.stderr,
    ), done.stderr


def test_an_error_that_was_raised_is_not_printed_at_exit() -> None:
    assert_runs(FAILING + "try:\n    value.tolist()\nexcept torch_remote.RemoteError:\n    pass")


def test_a_script_is_named_by_its_file(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(FAILING + "value.tolist()")
    done = run_python(f"import runpy; runpy.run_path({str(script)!r})")
    assert "train.py:4 in forward: " in done.stderr.splitlines()[-1]
