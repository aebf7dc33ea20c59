"""The log: one line for each place in the user's program, and the report of all of them."""

from __future__ import annotations

import collections
import contextlib
import functools
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch

from . import _C
from ._places import place_of


class _Logger(logging.Logger):
    """Tells C++ of a new level, so that a quiet log costs nothing."""

    def setLevel(self, level: int | str) -> None:
        super().setLevel(level)
        _sync_level()


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to stderr, unless the user has configured logging, at whatever time."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            self.setStream(sys.stderr)
            super().emit(record)


logger = logging.getLogger("TorchDevice")

_QUIET, _NEW_SITES, _EVERY_CALL = range(3)
_warned: set[tuple[str, str, int]] = set()
_logged: set[tuple[str, int, str, str, str]] = set()
_OURS = Path(__file__).parent
_PACKAGES = (_OURS.name, "torch_remote", "torch_modal", "torch_remote_patches")
# A call from within these is logged with the line of the program that called them.
_FOLDERS = [
    f"{Path(torch.__file__).parent}/",
    *(f"{_OURS.parent / each}/" for each in _PACKAGES),
    contextlib.__file__,  # `with torch.random.fork_rng():`
    functools.__file__,
]


def _on_redirect(
    api: str, asked: str, used: str, reason: str, file: str, function: str, line: int, new: bool
) -> None:
    # A line may make several calls, each of which is a site of its own for C++.
    place = (file, line, api, asked, used)
    new = new and place not in _logged
    _logged.add(place)
    overridden = "override is on" in reason and asked != "cpu:-1"
    level = logging.DEBUG if not new else logging.WARNING if overridden else logging.INFO
    why = f" ({reason})" if reason else ""
    where = place_of(file, line)
    logger.log(level, "%s %s(): %s: %s -> %s%s", where, function, api, asked, used, why)


def set_level(level: str | int) -> None:
    """DEBUG: every redirected call; INFO: each call site once; WARNING, ERROR: less."""
    logger.setLevel(level)


def _sync_level() -> None:
    if logger.isEnabledFor(logging.DEBUG):
        mode = _EVERY_CALL
    else:
        mode = _NEW_SITES if logger.isEnabledFor(logging.WARNING) else _QUIET
    _C.set_log(mode, _on_redirect)


def install() -> None:
    """Sets the level unless the user has, and a handler for stderr."""
    _C.set_library_folders(_FOLDERS)
    level = os.environ.get("TORCHDEVICE_LOG_LEVEL", "").strip().upper() or "INFO"
    if level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise ValueError(
            f"TORCHDEVICE_LOG_LEVEL is {level}; it may be DEBUG, INFO, WARNING or ERROR"
        )
    logger.__class__ = _Logger
    if logger.level == logging.NOTSET:
        logger.setLevel(level)
    if not logger.handlers:
        handler = _Stderr()
        handler.setFormatter(logging.Formatter("TorchDevice: %(message)s"))
        logger.addHandler(handler)
    _sync_level()


def _is_generated(frame: Any) -> bool:
    """Whether a library has made the frame's code from text: see redirect/sites.h."""
    is_program = frame.f_globals.get("__name__") == "__main__" and "__file__" not in frame.f_globals
    return frame.f_code.co_filename == "<string>" and not is_program


def _is_users(frame: Any) -> bool:
    return not (frame.f_code.co_filename.startswith(tuple(_FOLDERS)) or _is_generated(frame))


def _user_line() -> tuple[str, int]:
    frame: Any = sys._getframe(1)
    while frame.f_back is not None and not _is_users(frame):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def warn_once(api: str, text: str) -> None:
    """A warning for a call that does less than CUDA's, once for each line of the user's."""
    file, line = _user_line()
    if (api, file, line) not in _warned:
        _warned.add((api, file, line))
        logger.warning("%s: %s %s", place_of(file, line), api, text)


def log_info(message: str, *args: object) -> None:
    """Writes a message of the user's own to the log."""
    logger.info(message, *args)


def auto_log(function: Any = None) -> Any:
    """A decorator, `@auto_log()` or `@auto_log`: logs each call of the user's own function."""
    if function is None:
        return auto_log

    @functools.wraps(function)
    def logged(*args: Any, **kwargs: Any) -> Any:
        logger.info("%s: %s() is called", place_of(*_user_line()), function.__qualname__)
        return function(*args, **kwargs)

    return logged


class Site(NamedTuple):
    """A place in the program, and what was redirected there."""

    file: str
    function: str
    line: int
    api: str
    asked: str
    used: str
    reason: str
    count: int  # type: ignore[assignment]  # tuple.count is not needed


class Report(list[Site]):
    """All sites. `str()` is a table, `json()` is for tools."""

    def __str__(self) -> str:
        if not self:
            return "TorchDevice has redirected nothing."
        left_out = _C.count_left_out()
        rows = [("where", "call", "asked", "used", "count")]
        rows += [
            (place_of(each.file, each.line), each.api, each.asked, each.used, str(each.count))
            for each in self
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(5)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            for row in rows
        ]
        if left_out:
            lines.append(f"{left_out} more at other places: the report has at most {len(self)}")
        return "\n".join(line.rstrip() for line in lines)

    def json(self) -> str:
        return json.dumps([each._asdict() for each in self], indent=2)


def sites() -> Report:
    """What was redirected so far, by file and line."""
    counts: collections.Counter[tuple[Any, ...]] = collections.Counter()
    for *place, count in _C.sites():
        counts[tuple(place)] += count
    return Report(sorted(Site._make((*place, count)) for place, count in counts.items()))


def report(*, as_json: bool = False) -> Report | str:
    """Prints what was redirected: call site, asked, used, count. Returns what it prints."""
    found = sites()
    printed = found.json() if as_json else found
    print(printed)
    return printed
