"""Reads a server's figures once a second and keeps their history, for the page."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import client_figures, figures
from .errors import CommandError
from .figures import Figures, OperatorFigures

INTERVAL = 1.0
RECENT = 60  # readings: the operators of the last 60 s
LOG_BYTES, LOG_LINES = 64 << 10, 200
SHOWN_OPERATORS = 15

# The columns of a sample. All but the first three are rates for a second.
COLUMNS = ("time", "memory", "sessions", "calls", "reads", "received", "sent")
Sample = tuple[float, ...]


class History:
    """The last samples, each with a number; the first has number 1. Externally synchronised."""

    def __init__(self, length: int) -> None:
        self._samples: deque[Sample] = deque(maxlen=length)
        self.last = 0

    def add(self, sample: Sample) -> None:
        self._samples.append(sample)
        self.last += 1

    def newest(self) -> Sample | None:
        return self._samples[-1] if self._samples else None

    def after(self, number: int) -> list[Sample]:
        """Those with a greater number. All of them for a number of another history."""
        missing = self.last - number if 0 <= number <= self.last else self.last
        return list(self._samples)[-missing:] if missing > 0 else []


class MinuteMean:
    """Makes one sample of those of a minute: the largest memory, the mean of the rates."""

    def __init__(self) -> None:
        self._samples: list[Sample] = []

    def add(self, sample: Sample) -> Sample | None:
        """The mean of the minute before, when the sample begins a new minute."""
        done = None
        if self._samples and self._samples[0][0] // 60 != sample[0] // 60:
            done = self._mean()
            self._samples = []
        self._samples.append(sample)
        return done

    def _mean(self) -> Sample:
        columns = list(zip(*self._samples, strict=True))
        rates = (sum(column) / len(column) for column in columns[3:])
        return (columns[0][0], max(columns[1]), max(columns[2]), *rates)


class Collector:
    """Thread-safe. The thread that reads is a daemon and never ends."""

    def __init__(self, socket: Path, log: Path | None) -> None:
        self._socket = socket
        self._log = log
        self._lock = threading.Lock()
        self._histories = {"minutes": History(15 * 60), "day": History(24 * 60)}
        self._minute = MinuteMean()
        self._recent: deque[Figures] = deque(maxlen=RECENT)
        self._rates: dict[str, figures.Rates] = {}
        self._last: tuple[float, Figures] | None = None
        self._error = ""

    def start(self) -> None:
        self.collect()
        threading.Thread(target=self._run, name="collector", daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(INTERVAL)
            self.collect()

    def collect(self) -> None:
        try:
            now, at = figures.read(self._socket), time.monotonic()
        except CommandError as error:
            with self._lock:
                self._error, self._last = str(error), None
            return
        with self._lock:
            self._add(now, at)

    def _add(self, now: Figures, at: float) -> None:
        before = self._last
        is_same = before is not None and before[1].started == now.started
        if before is not None and is_same:
            self._rates = figures.rates_of(before[1], now, at - before[0])
        else:  # the first reading, or another server
            self._rates = figures.rates_of(None, now, 0)
            self._recent.clear()
        self._last, self._error = (at, now), ""
        self._recent.append(now)
        rates = self._rates.values()
        sample = (
            round(time.time(), 1),
            now.memory,
            len(now.sessions),
            *(
                round(sum(getattr(rate, name) for rate in rates), 1)
                for name in ("calls", "answers", "received_bytes", "sent_bytes")
            ),
        )
        self._histories["minutes"].add(sample)
        if (mean := self._minute.add(sample)) is not None:
            self._histories["day"].add(mean)

    def told(self, history: str, after: int) -> dict[str, Any]:
        """All that the page shows; samples only with a number greater than `after`."""
        with self._lock:
            samples = self._histories[history]
            told: dict[str, Any] = {
                "error": self._error,
                "columns": COLUMNS,
                "samples": samples.after(after),
                "last": samples.last,
                "now": self._histories["minutes"].newest(),
                "server": None,
            }
            if self._recent:
                told["server"] = self._describe(self._recent[-1])
        told["clients"] = client_figures.read_all()
        told["log"] = None if self._log is None else last_lines(self._log)
        return told

    def _describe(self, now: Figures) -> dict[str, Any]:
        server = now.as_dict()
        for session in server["sessions"]:
            rate = self._rates.get(session["id"]) or figures.Rates()
            session["per_second"] = asdict(rate)
        recent = {one.name: one for one in figures.operators_since(self._recent[0], now)}
        operators = sorted(
            now.operators, key=lambda one: (-_seconds(recent.get(one.name)), -one.seconds)
        )
        server["operators"] = [
            {**asdict(one), "recent_seconds": _seconds(recent.get(one.name))}
            for one in operators[:SHOWN_OPERATORS]
        ]
        return server

    def metrics(self) -> str:
        """The server's own text, for Prometheus. Raises CommandError."""
        return figures.read_text(self._socket)


def _seconds(one: OperatorFigures | None) -> float:
    return one.seconds if one is not None else 0.0


def last_lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - LOG_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError as error:
        return [f"cannot read {path}: {error.strerror}"]
    return (lines[1:] if size > LOG_BYTES else lines)[-LOG_LINES:]
