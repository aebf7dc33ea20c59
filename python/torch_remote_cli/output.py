"""What commands print: tables, sizes, durations, JSON, and progress of what takes over a second."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any


def bytes_text(count: float) -> str:
    """1536 is "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def count_text(count: float) -> str:
    """12345.6 is "12,346", 3.21 is "3.2"."""
    return f"{count:,.1f}" if 0 < abs(count) < 10 and count % 1 else f"{count:,.0f}"


def counted(count: int, noun: str) -> str:
    """1 is "1 session", 2 is "2 sessions"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def duration_text(seconds: float) -> str:
    """93 is "1m 33s", 0.0021 is "2.1 ms"."""
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours}h"
    return f"{hours}h {minutes}m" if hours else f"{minutes}m {rest}s"


# C0 but newline and tab, DEL, C1, Unicode's controls of direction; as readable() of base/text.h.
# And what is left of bytes that are not UTF-8, which cannot be printed.
_CONTROLS = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff"


def printable_lines(text: str) -> str:
    """A text that others wrote, without what could change the terminal or the order of letters."""
    return re.sub(f"[{_CONTROLS}]", chr(0xFFFD), text)


def printable(text: str) -> str:
    """The same as one line: for names."""
    return re.sub(f"[{_CONTROLS}\n\t]", chr(0xFFFD), text)


def table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Columns under their names. The first `left` columns are aligned to the left."""
    lines = [list(header), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2), flush=True)


class Waiting:
    """`with Waiting("connecting to gpu-box"):` says so on stderr if it takes over a second.

    At a terminal the line counts the seconds and is removed at the end.
    """

    def __init__(self, what: str, quiet: bool = False) -> None:
        self._what = what
        self._quiet = quiet
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)

    def __enter__(self) -> Waiting:
        if not self._quiet:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end.set()
        if not self._quiet:
            self._thread.join()

    def _show(self) -> None:
        begin = time.monotonic()
        if self._end.wait(1):
            return
        if not sys.stderr.isatty():
            print(f"{self._what} ...", file=sys.stderr, flush=True)
            return
        while True:
            passed = time.monotonic() - begin
            print(f"\r{self._what} ... {passed:.0f} s ", end="", file=sys.stderr, flush=True)
            if self._end.wait(1):
                break
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
