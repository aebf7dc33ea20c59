"""Shows how far large transfers are: in a notebook, and at a terminal.

C++ calls `_begin`, `_update` and `_end` for a single transfer of 64 MiB or more that a thread waits
for (src/client/session/progress.h). What moves many tensors, such as `torch.load`, uses `showing()`
for all of them together.

TORCH_REMOTE_PROGRESS=0 shows nothing, TORCH_REMOTE_PROGRESS=1 shows it also without a terminal.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import serialization

from . import _C
from ._backend import is_ours, name
from ._patches import patch

LEAST_SHOWN = 64 << 20  # kLeastShown in client/session/progress.cpp


def _is_notebook() -> bool:
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


def is_on() -> bool:
    """Whether transfers are shown in this process."""
    setting = os.environ.get("TORCH_REMOTE_PROGRESS", "")
    if setting in ("0", "1"):
        return setting == "1"
    try:
        return _is_notebook() or sys.stderr.isatty()
    except (AttributeError, ValueError):  # no stderr, one of another kind, or a closed one
        return False


class _Line:
    """A line on stderr that is written again and again; for where there is no tqdm."""

    def __init__(self, total: int, desc: str) -> None:
        self.total, self.desc, self.n, self.width = total, desc, 0, 0

    def refresh(self) -> None:
        mib = [amount >> 20 for amount in (self.n, self.total)]
        text = f"{self.desc}: {mib[0]} of {mib[1]} MiB ({100 * self.n // self.total}%)"
        self._write(text.ljust(self.width))
        self.width = len(text)

    def close(self) -> None:
        self._write(" " * self.width + "\r")

    def _write(self, text: str) -> None:
        print(f"\r{text}", end="", file=sys.stderr, flush=True)


def _terminal_size() -> dict[str, int]:
    """For tqdm, which shows nothing in a terminal of size 0, such as that of a recorded session."""
    try:
        size = os.get_terminal_size(sys.stderr.fileno())
    except (OSError, ValueError):  # stderr is no terminal, or no file
        size = os.terminal_size((0, 0))
    return {"ncols": size.columns or 80, "nrows": size.lines or 24}


def _make_bar(total: int, desc: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a notebook without ipywidgets gets a bar of text
            tqdm: Any = importlib.import_module("tqdm.auto").tqdm
    except ImportError:
        return _Line(total, desc)
    size = {} if _is_notebook() else _terminal_size()
    unit = {"unit": "B", "unit_scale": True, "unit_divisor": 1024}
    return tqdm(total=total, desc=desc, leave=False, **unit, **size)


class Transfer:
    """What one thread moves in one direction. `total` may grow until it is first shown."""

    def __init__(self, total: int, is_upload: bool) -> None:
        self.total = total
        self._is_upload = is_upload
        self._start = self._moved()
        self._bar: Any = None
        self.storages: set[int] = set()  # addresses of those that add_storage() has counted

    def _moved(self) -> int:
        sent, received = _C.bytes_moved()
        return sent if self._is_upload else received

    def update(self) -> None:
        moved = self._moved() - self._start
        if self._bar is None:
            if self.total < LEAST_SHOWN:
                return
            self._bar = _make_bar(self.total, f"{'to' if self._is_upload else 'from'} {name()}")
        self._bar.n = min(moved, self.total)
        self._bar.refresh()

    def close(self) -> None:
        if self._bar is not None:
            self.update()
            self._bar.close()


_shown = threading.local()  # .transfer: what C++ has begun


def _begin(total: int, is_upload: bool) -> bool:
    if not is_on():
        return False
    _shown.transfer = Transfer(total, is_upload)
    _shown.transfer.update()
    return True


def _update() -> None:
    _shown.transfer.update()


def _end() -> None:
    _shown.transfer.close()
    del _shown.transfer


def add_storage(storage: torch.UntypedStorage) -> None:
    """Adds a storage, once, to what the block of `showing()` moves."""
    transfer = getattr(_shown, "transfer", None)
    if transfer is not None and storage.data_ptr() not in transfer.storages:
        transfer.storages.add(storage.data_ptr())
        transfer.total += storage.nbytes()


@contextmanager
def showing(is_upload: bool, total: int = 0) -> Iterator[Transfer | None]:
    """Shows what this thread moves in the block as one transfer, if it is large.

    Gives None if nothing is shown: progress is off, or an outer block shows it.
    """
    if not is_on() or _C.set_progress_shown(True):
        yield None
        return
    _shown.transfer = transfer = Transfer(total, is_upload)
    try:
        yield transfer
    finally:
        _C.set_progress_shown(False)
        with suppress(Exception):  # as in C++: showing must not end what is shown
            _end()


def _loading(load: Callable[..., Any]) -> Callable[..., Any]:
    """For the part of `torch.load` that reads a zip file, which knows the sizes of its storages."""

    @functools.wraps(load)
    def shown(zip_file: Any, *args: Any, **kwargs: Any) -> Any:
        with showing(is_upload=True) as transfer:
            if transfer is not None:
                records = zip_file.get_all_records()
                stored = (record for record in records if record.startswith("data/"))
                transfer.total = sum(map(zip_file.get_record_size, stored))
            return load(zip_file, *args, **kwargs)

    return shown


def _moving(move: Callable[..., Any], target: Callable[..., str | None]) -> Callable[..., Any]:
    """For the methods of `Module` that move its tensors one by one to a device of type `target`."""

    @functools.wraps(move)
    def shown(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not is_on():  # Dynamo cannot trace the rest
            return move(self, *args, **kwargs)
        is_upload = target(*args, **kwargs) == name()
        moved = (t for t in (*self.parameters(), *self.buffers()) if is_ours(t) != is_upload)
        total = sum(tensor.nbytes for tensor in moved if not torch.nn.parameter.is_lazy(tensor))
        with showing(is_upload, total):
            return move(self, *args, **kwargs)

    return shown


def _parsed_type(*args: Any, **kwargs: Any) -> str | None:
    try:
        device = torch._C._nn._parse_to(*args, **kwargs)[0]
    except (TypeError, RuntimeError, ValueError):
        return None
    return None if device is None else str(device.type)


def install() -> None:
    """Shows what `torch.load` and the methods of `Module` move."""
    _C.set_progress_hooks(_begin, _update, _end)
    patch(serialization, "_load", _loading(serialization._load))
    module: Any = torch.nn.Module
    patch(module, "to", _moving(module.to, _parsed_type))
    patch(module, name(), _moving(getattr(module, name()), lambda *_, **__: name()))
    patch(module, "cpu", _moving(module.cpu, lambda *_: "cpu"))
