"""Which lines of the program waited for a server, how often and how long."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from . import _C


@dataclass(frozen=True)
class Waits:
    """How often, and how long in all, a line of the program waited for a server."""

    line: str  # "train.py:12"; empty: not known
    count: int
    seconds: float

    def __str__(self) -> str:
        times = "once" if self.count == 1 else f"{self.count:,} times"
        return f"{self.line or 'an unknown line'} waited {times}, {_duration(self.seconds)}"


class WaitTable(tuple[Waits, ...]):
    """Lines that waited, the longest time first; `str()` has a line for each."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(str(each) for each in self) or "no line waited for a server"


def _duration(seconds: float) -> str:
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1e3:,.1f} ms" if seconds < 0.1 else f"{seconds * 1e3:,.0f} ms"


def waits_by_line() -> list[Waits]:
    """The lines that waited since the start of the process, the longest time first."""
    return [Waits(*waits) for waits in _C.waits_by_line()]


def waits(profile: Any = None) -> WaitTable:
    """The lines that waited since the start of the process; `print(torch_remote.waits())`.

    With a profile of `torch.profiler` or `torch.autograd.profiler`: those that waited while it
    recorded, for a profile with a schedule in its last cycle. The profiler's own waits, when it
    starts and stops, are not in it. Sends nothing.
    """
    if profile is None:
        return WaitTable(waits_by_line())
    noted = getattr(getattr(profile, "profiler", profile), "_torch_remote_waits", None)
    if not isinstance(noted, WaitTable):
        raise ValueError("waits(): this is not a profile that has recorded and ended")
    return noted


def waits_since(before: Iterable[Waits]) -> WaitTable:
    """The lines that have waited since `before = waits_by_line()`."""
    old = {each.line: each for each in before}
    none = Waits("", 0, 0.0)
    differences = (
        Waits(
            each.line,
            each.count - old.get(each.line, none).count,
            each.seconds - old.get(each.line, none).seconds,
        )
        for each in waits_by_line()
    )
    new = [each for each in differences if each.count > 0]
    return WaitTable(sorted(new, key=lambda each: each.seconds, reverse=True))
