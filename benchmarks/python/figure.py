"""A figure: a measured value, its bar, and how to measure on a noisy machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

Clock = Callable[[], float]


@dataclass(frozen=True)
class Figure:
    name: str
    value: float
    bar: float
    relation: str = "<="  # value relation bar: "<=", ">=" or "=="
    unit: str = ""

    @property
    def ok(self) -> bool:
        if self.relation == "==":
            return self.value == self.bar
        return self.value <= self.bar if self.relation == "<=" else self.value >= self.bar

    def as_dict(self) -> dict[str, Any]:
        return {
            "value": self.value,
            "bar": self.bar,
            "ok": self.ok,
            "relation": self.relation,
            "unit": self.unit,
        }


def elapsed(action: Callable[[], object], clock: Clock = time.perf_counter) -> float:
    """Seconds of `clock` that one run of the action takes."""
    started = clock()
    action()
    return clock() - started


def interleave(rounds: int, *measures: Callable[[], float]) -> list[list[float]]:
    """Takes all measures in turn, `rounds` times, so that a slow minute affects all of them."""
    samples: list[list[float]] = [[] for _ in measures]
    for _ in range(rounds):
        for measure, kept in zip(measures, samples, strict=True):
            kept.append(measure())
    return samples


def ratio_of_best(numerator: Iterable[float], denominator: Iterable[float]) -> float:
    """The ratio of the shortest times: disturbances only make a time longer."""
    return min(numerator) / min(denominator)


def geometric_mean(values: Iterable[float]) -> float:
    return statistics.geometric_mean(values)
