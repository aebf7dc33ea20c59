"""`within()`: what a provider's SDK does is given up in time, and undone if it comes too late."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from helpers import DEADLINE

from torch_remote.providers import common
from torch_remote.providers.common import within


class Slow:
    """A call that ends when it is told to."""

    def __init__(self) -> None:
        self.may_end, self.has_undone = threading.Event(), threading.Event()
        self.undone: list[str] = []

    def __call__(self) -> str:
        assert self.may_end.wait(DEADLINE)
        return "made"

    def undo(self, made: str) -> None:
        self.undone.append(made)
        self.has_undone.set()


def test_the_result_is_returned() -> None:
    assert within(DEADLINE, "too late", lambda: 7) == 7


def test_an_error_of_the_function_is_raised() -> None:
    def fail() -> None:
        raise TimeoutError("of the SDK")

    with pytest.raises(TimeoutError, match="of the SDK"):
        within(DEADLINE, "too late", fail)


def test_a_result_that_comes_too_late_is_undone() -> None:
    slow = Slow()
    with pytest.raises(TimeoutError, match="too late"):
        within(0, "too late", slow, slow.undo)
    assert slow.undone == []
    slow.may_end.set()
    assert slow.has_undone.wait(DEADLINE)
    assert slow.undone == ["made"]


def test_an_error_of_undoing_is_nobodys(capfd: pytest.CaptureFixture[str]) -> None:
    threads: list[threading.Thread] = []
    has_begun = threading.Event()

    def undo(made: str) -> None:
        threads.append(threading.current_thread())
        has_begun.set()
        raise RuntimeError(made)

    slow = Slow()
    with pytest.raises(TimeoutError):
        within(0, "too late", slow, undo)
    slow.may_end.set()
    assert has_begun.wait(DEADLINE)
    threads[0].join(DEADLINE)
    assert capfd.readouterr().err == ""


def interrupt(monkeypatch: pytest.MonkeyPatch, slow: Slow, *, has_ended: bool) -> None:
    """Ctrl-C while `within()` waits: before the function ends, or when it has."""

    def interrupted(waited_for: list[Any], patience_s: float) -> None:
        slow.may_end.set()
        if has_ended:
            waited_for[0].result(DEADLINE)
        raise KeyboardInterrupt

    monkeypatch.setattr(common.futures, "wait", interrupted)


@pytest.mark.parametrize("has_ended", [False, True])
def test_ctrl_c_waits_for_the_undoing(monkeypatch: pytest.MonkeyPatch, has_ended: bool) -> None:
    slow = Slow()
    interrupt(monkeypatch, slow, has_ended=has_ended)
    with pytest.raises(KeyboardInterrupt):
        within(DEADLINE, "too late", slow, slow.undo)
    assert slow.undone == ["made"]


def test_ctrl_c_keeps_a_failure_out_of_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow()
    interrupt(monkeypatch, slow, has_ended=False)

    def fail() -> str:
        raise RuntimeError(slow())

    with pytest.raises(KeyboardInterrupt):
        within(DEADLINE, "too late", fail, slow.undo)
    assert slow.undone == []
