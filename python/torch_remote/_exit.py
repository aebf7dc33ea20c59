"""The end of this process: waits for what was sent, and prints what was never raised."""

from __future__ import annotations

import atexit
import multiprocessing.util
import os
import sys
import threading

from . import _C, _launch

# After all that other modules do at the end of a process of multiprocessing.
_LAST = -(2**31)


def install() -> None:
    atexit.register(_shut_down)
    # A process of multiprocessing that was forked ends with os._exit(): atexit does nothing there.
    multiprocessing.util.register_after_fork(_shut_down, _watch_process)
    _watch_process(_shut_down)


def _watch_process(_: object) -> None:
    if multiprocessing.process.parent_process() is not None:
        multiprocessing.util.Finalize(None, _end_process, exitpriority=_LAST)


def _end_process() -> None:
    """Ends a process of multiprocessing as the exit of an interpreter would."""
    if _C.is_in_bad_fork():
        return
    # Wakes the idle workers of thread pools, then joins all threads.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit.unregister(_shut_down)
    has_told_all = _shut_down()
    error = sys.exc_info()[1]  # that has ended the process's function
    if not has_told_all and (error is None or getattr(error, "code", 1) in (None, 0)):
        sys.exit(1)


def _shut_down() -> bool:
    """False if something was printed that the program should have been told of."""
    # A forked child must not close the sessions of its parent.
    if _C.is_in_bad_fork():
        return True
    # After Ctrl-C, but not one that an interactive session has survived.
    error = getattr(sys, "last_type", None) or sys.exc_info()[0]
    is_interrupted = error is not None and issubclass(error, KeyboardInterrupt)
    # PyTorch waits 10 s at exit for autograd's threads. One that was in a remote call of a daemon
    # thread's backward never ends: see Note [The GIL at exit] in src/bindings/python_hooks.cpp.
    os.environ.setdefault("TORCH_AUTOGRAD_SHUTDOWN_WAIT_LIMIT", "0")
    try:
        return _C.shutdown(is_interrupted and not hasattr(sys, "ps1"))
    finally:
        _launch.stop_all()
