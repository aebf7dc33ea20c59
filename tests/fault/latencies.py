"""Measured durations, for the summary of a test run."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator

_seconds: defaultdict[str, list[float]] = defaultdict(list)


def note(what: str, seconds: float) -> None:
    _seconds[what].append(seconds)


def noted() -> dict[str, list[float]]:
    return dict(_seconds)


def add(others: dict[str, list[float]]) -> None:
    """Adds what another process has noted."""
    for what, seconds in others.items():
        _seconds[what] += seconds


def report() -> Iterator[str]:
    for what, seconds in sorted(_seconds.items()):
        median, most = (round(1000 * value) for value in (statistics.median(seconds), max(seconds)))
        yield f"{what}: {len(seconds)} times, median {median} ms, at most {most} ms"
