"""Shows a server's sessions live: memory, calls and bytes per second, reads, the slowest operators.

At a terminal it fills the screen; q ends it. Elsewhere it prints a text at each interval, or with
--json one object to a line.
"""

from __future__ import annotations

import argparse
import json
import select
import shutil
import sys
import termios
import threading
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .. import figures
from ..errors import OK, CommandError
from ..figures import Figures
from ..output import bytes_text, count_text, counted, duration_text, table

EPILOG = """\
columns: "calls/s" are operators, "reads/s" are answers that the client asked for (it waits for
most of them), "in/s" and "out/s" are bytes from and to the client, "queued" are bytes of calls
that wait to be run. On CUDA an operator's time is the time to launch it.

examples:
  torch-remote top
  torch-remote top --json --count 1           one object: the figures of one second

exit status: 0; 2 wrong usage; 3 the server does not answer at the start
"""

HEADER = ("session", "client", "age", "memory", "calls/s", "reads/s", "in/s", "out/s", "queued")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--metrics",
        metavar="URL",
        help="unix:///path of `serve --metrics`, or TORCH_REMOTE_METRICS",
    )
    parser.add_argument(
        "--interval", type=float, default=1.0, metavar="S", help="seconds; default 1"
    )
    parser.add_argument("--count", type=int, metavar="N", help="end after N intervals")
    parser.add_argument("--json", action="store_true", help="print one JSON object to a line")
    parser.add_argument("-q", "--quiet", action="store_true", help="accepted as everywhere")


def run(options: argparse.Namespace) -> int:
    if not 0 < options.interval < threading.TIMEOUT_MAX:  # nor is NaN
        raise CommandError(
            f"--interval {options.interval:g}: it is a number of seconds, more than 0 and finite", 2
        )
    if options.count is not None and options.count < 1:
        raise CommandError(f"--count {options.count}: it is a number of at least 1", 2)
    socket = figures.find_socket(options.metrics)
    figures.read(socket)  # fails before the screen is cleared
    is_screen = not options.json and sys.stdout.isatty() and sys.stdin.isatty()
    if not is_screen:
        _print(socket, options)
        return OK
    with _screen():
        _fill(socket, options)
    return OK


def _print(socket: Path, options: argparse.Namespace) -> None:
    before, begin, shown = figures.read(socket), time.monotonic(), 0
    while shown != options.count:
        time.sleep(options.interval)
        now, at = figures.read(socket), time.monotonic()
        if options.json:
            print(json.dumps(as_dict(before, now, at - begin)), flush=True)
        else:
            print("\n".join(lines_of(before, now, at - begin, 10_000)) + "\n", flush=True)
        before, begin, shown = now, at, shown + 1


def _fill(socket: Path, options: argparse.Namespace) -> None:
    before: Figures | None = None
    begin, shown = time.monotonic(), 0
    while True:
        columns, height = shutil.get_terminal_size()
        try:
            now, at = figures.read(socket), time.monotonic()
            lines = lines_of(before, now, at - begin, height)
            before, begin = now, at
        except CommandError as error:  # the server may come back
            lines, before = [str(error)], None
        text = "\r\n".join(f"{line[:columns]}\x1b[K" for line in lines[:height])
        sys.stdout.write(f"\x1b[H{text}\x1b[J")
        sys.stdout.flush()
        shown += 1
        if _ends_by_key(options.interval) or shown == options.count:
            return


def _ends_by_key(seconds: float) -> bool:
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return bool(ready) and sys.stdin.read(1) in ("q", "Q", "")


@contextmanager
def _screen() -> Iterator[None]:
    """The terminal's second screen without a cursor; keys come without Enter."""
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    sys.stdout.write("\x1b[?1049h\x1b[?25l\x1b[2J")
    try:
        yield
    finally:
        sys.stdout.write("\x1b[?25h\x1b[?1049l")
        sys.stdout.flush()
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def lines_of(before: Figures | None, now: Figures, seconds: float, height: int) -> list[str]:
    rates = figures.rates_of(before, now, seconds)
    operators = figures.operators_since(before, now)
    total = sum(rate.calls for rate in rates.values())
    lines = [
        f"torch-remote top   {now.host}, pid {now.pid}, torch {now.torch}, "
        f"up {duration_text(max(0.0, now.time - now.started))}",
        f"{counted(len(now.sessions), 'session')}, {bytes_text(now.memory)} in tensors, "
        f"{count_text(total)} calls/s, {now.sessions_killed} killed, "
        f"{now.clients_refused} refused",
        "",
    ]
    ordered = sorted(now.sessions, key=lambda one: -rates[one.id].calls)
    lines += table(HEADER, [_row(one, rates[one.id], now) for one in ordered], 2).splitlines()
    room = height - len(lines) - 3
    if operators and room > 0:
        busiest = operators[: min(room, 12)]
        rows = [
            [one.name, count_text(one.calls), duration_text(one.seconds),
             duration_text(one.seconds / one.calls)]
            for one in busiest
        ]  # fmt: skip
        what = "operators" if before else "operators since the start"
        lines += ["", *table((what, "calls", "time", "each"), rows).splitlines()]
    return lines


def _row(session: figures.SessionFigures, rate: figures.Rates, now: Figures) -> list[str]:
    return [
        session.id,
        session.peer[:28] or "not yet known",
        duration_text(max(0.0, now.time - session.started)) if session.started else "-",
        bytes_text(session.memory),
        count_text(rate.calls),
        count_text(rate.answers),
        bytes_text(rate.received_bytes),
        bytes_text(rate.sent_bytes),
        bytes_text(session.queued_bytes),
    ]


def as_dict(before: Figures, now: Figures, seconds: float) -> dict[str, Any]:
    rates = figures.rates_of(before, now, seconds)
    told = now.as_dict()
    for session in told["sessions"]:
        session["per_second"] = asdict(rates[session["id"]])
    told["operators"] = [asdict(one) for one in figures.operators_since(before, now)]
    told["seconds"] = seconds
    return told
