"""What providers share: options, limits of time, progress, and errors that say what to do."""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from torch_remote_cli.output import printable

from .. import _running
from .._errors import ConnectionError
from . import Endpoint, Spec, grammar

Result = TypeVar("Result")

# Of every provider that runs `torch-remote serve`.
SERVE_OPTIONS = ("command", "device", "idle", "lease", "lifetime", "wait")
IDLE = "10m"  # after this time without a call the server ends, and with it the machine
LIFETIME = "8h"  # after this time it ends in any case
LEASE = "1m"  # how long it waits for a client whose connection is lost
ENDED = "ended"  # of state(): nothing of the machine is left
WAIT = "10m"  # how long a launch waits for a machine: for its turn, its image, its start

logger = logging.getLogger("torch_remote.providers")


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to stderr, unless the user has configured logging; warnings also without progress."""

    def emit(self, record: logging.LogRecord) -> None:
        if logging.getLogger().handlers:
            return
        if record.levelno >= logging.WARNING or os.environ.get("TORCH_REMOTE_PROGRESS") != "0":
            self.setStream(sys.stderr)
            super().emit(record)


_handler = _Stderr()
_handler.setFormatter(logging.Formatter("torch_remote: %(message)s"))
logger.addHandler(_handler)
logger.setLevel(logging.INFO)


class Progress:
    """Says what a launch waits for: queued, image, starting, connecting. Each text once."""

    def __init__(self, spec: Spec) -> None:
        self._what = spec.url.partition("?")[0]
        self._begin = time.monotonic()
        self._last = ""

    def __call__(self, stage: str, more: str = "") -> None:
        text = printable(f"{stage}: {more}" if more else stage)
        if text != self._last:
            self._last = text
            logger.info("%s: %s (%.0f s)", self._what, text, time.monotonic() - self._begin)


def check_options(spec: Spec, *names: str) -> None:
    """ValueError if the URL has an option that is not one of these."""
    unknown = sorted(set(spec.options) - set(names))
    if unknown:
        known = ", ".join(sorted(names))
        raise ValueError(f"{spec.url}: no option {unknown[0]!r}; there are {known}")


_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds(spec: Spec, option: str, default: str) -> int:
    """A duration such as `90s`, `10m` or `2h`, as seconds."""
    text = spec.options.get(option, default)
    match = re.fullmatch(r"(\d+)([smhd])", text)
    if match is None or int(match[1]) == 0:
        raise ValueError(f"{spec.url}: {option}={text} is no duration; write 90s, 10m or 2h")
    return int(match[1]) * _SECONDS[match[2]]


def number(spec: Spec, option: str, default: int, most: int = 64) -> int:
    """A number of GPUs, nodes or pods."""
    text = spec.options.get(option, str(default))
    if not text.isdecimal() or not 0 <= int(text) <= most:
        raise ValueError(f"{spec.url}: {option}={text} must be a number up to {most}")
    return int(text)


def serve_command(spec: Spec, *more: str) -> list[str]:
    """`torch-remote serve` with the limits that the server itself enforces."""
    words = [*shlex.split(spec.options.get("command", "torch-remote")), "serve", *more]
    for option, argument, default in (
        ("lease", "--lease", LEASE),
        ("idle", "--idle-timeout", IDLE),
        ("lifetime", "--max-lifetime", LIFETIME),
    ):
        words += [argument, f"{seconds(spec, option, default)}s"]
    if "device" in spec.options:
        words += ["--device", grammar.check(spec, "device=", spec.options["device"], grammar.WORD)]
    return words


def who_ends(spec: Spec, what: str, has_idle_limit: bool = True) -> str:
    """The sentence of `Endpoint.ends`."""
    idle = spec.options.get("idle", IDLE)
    lifetime = spec.options.get("lifetime", LIFETIME)
    first = (
        f"`torch-remote down {spec.name}`" if spec.keep else "stop(), or the end of this process,"
    )
    after = f"after {idle} without a call, and " if has_idle_limit else ""
    return f"{first} ends the {what}; it ends itself {after}after {lifetime}"


_MARK = "TORCH_REMOTE_MACHINE"


def mark(spec: Spec) -> str:
    """A variable of the environment by which the processes of a machine are known."""
    return f"{_MARK}={spec.label}"


def idle_watch(spec: Spec) -> str:
    """A script for sh that ends when no process with the `mark()` has run for the time of `idle`.

    It is the main program of a pod or a job whose servers are started beside it.
    """
    idle_s = seconds(spec, "idle", IDLE)
    return (
        f"left={idle_s}; while [ $left -gt 0 ]; do sleep 1; left=$((left - 1)); "
        f"if grep -qs '{mark(spec)}' /proc/[0-9]*/environ; then left={idle_s}; fi; done"
    )


def logged(command: Sequence[str], label: str) -> tuple[str, ...]:
    """The command with its standard error appended to the log of the machine of this label."""
    return _running.logged(_running.make_log(label), command)


def machine_of(servers: Sequence[Endpoint], ends: str, stays: bool) -> Endpoint:
    """One machine of several servers: the first, with the others as its next devices."""
    first, *others = [replace(each, ends=ends, stays=stays) for each in servers]
    return replace(first, also=tuple(others))


# Of Kubernetes' programs: kubectl prints the same cause several times so before its own sentence.
_LOG_LINE = re.compile(r"[EFIW]\d{4} \d\d:\d\d:\d\d")


def last_words(text: str) -> str:
    """The end of what a program has printed, as one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    lines = [line for line in lines if not _LOG_LINE.match(line)] or lines
    return printable(" ".join(lines[-5:])[-800:].rstrip("."))


def advise(what: str, words: str, advice: Sequence[tuple[str, str]], otherwise: str) -> str:
    """One sentence: what failed, in the provider's own words, and what to do about it."""
    words = last_words(words)
    for pattern, to_do in advice:
        if re.search(pattern, words, re.IGNORECASE):
            stop = "" if words.endswith("?") else "."
            return f"{what}: {words}{stop} What to do: {to_do}"
    return f"{what}: {words}" if words else f"{what}: {otherwise}"


def run_program(
    words: Sequence[str], patience_s: float, text: str = ""
) -> subprocess.CompletedProcess[str]:
    """Runs a provider's command. One that takes too long fails with a sentence of its own."""
    try:
        return subprocess.run(
            words, input=text, capture_output=True, text=True, timeout=patience_s, check=False
        )
    except subprocess.TimeoutExpired:
        said = f"`{words[0]} {words[1]}` did not answer within {patience_s:.0f} s"
        return subprocess.CompletedProcess(words, 124, "", said)
    except FileNotFoundError:
        said = f"there is no `{words[0]}` on this machine"
        return subprocess.CompletedProcess(words, 127, "", said)


@dataclass(frozen=True)
class Tool:
    """A provider's commands, such as kubectl: how long one may take, and what its errors mean."""

    advice: Sequence[tuple[str, str]]
    failure: str  # where a command that fails says nothing
    patience_s: float

    def ask(self, what: str, *words: str, text: str = "", patience_s: float = 0) -> str:
        """What a command prints; ConnectionError with its words if it fails."""
        done = run_program(words, patience_s or self.patience_s, text)
        if done.returncode != 0:
            raise ConnectionError(self.advise(what, done.stderr or done.stdout))
        return done.stdout

    def advise(self, what: str, words: str) -> str:
        return advise(what, words, self.advice, self.failure)

    def explain(self, endpoint: Endpoint, label: str, state: str) -> str:
        """Why a machine failed: what its command has printed, and its state; else empty."""
        _running.wait_for_log(_running.log_of(label))
        words = _running.read_log(label)
        if state != "running":
            words += f"\n{state}"
        return self.advise(endpoint.url, words) if words else ""


def need_program(spec: Spec, program: str, package: str) -> None:
    if shutil.which(program) is None:
        raise ConnectionError(
            f"{spec.url}: there is no `{program}` on this machine. What to do: install {package}"
        )


def check_reachable(what: str, host: str, port: int, patience_s: float = 5) -> None:
    """Raises within seconds if nothing listens there, where an SDK would try for a minute."""
    try:
        socket.create_connection((host, port), patience_s).close()
    except OSError as error:
        raise ConnectionError(
            f"{what}: nothing answers at {host}:{port} ({error.strerror or error}). What to do: "
            "check the network and the address"
        ) from error


def within(
    patience_s: float,
    failure: str,
    function: Callable[[], Result],
    undo: Callable[[Result], object] | None = None,
) -> Result:
    """What the function returns; TimeoutError with the text if it takes longer.

    The function runs in a thread, so that Ctrl-C is noticed at once. With `undo`, a result that
    comes too late is undone, and after Ctrl-C this waits some seconds for it.
    """
    outcome: Future[Result] = Future()  # cancelled when nobody waits for it any more

    def run() -> None:
        try:
            result = function()
        except BaseException as error:
            with suppress(InvalidStateError):
                outcome.set_exception(error)
            return
        try:
            outcome.set_result(result)
        except InvalidStateError:
            if undo is not None:
                with suppress(BaseException):
                    undo(result)

    thread = threading.Thread(target=run, daemon=True)  # an executor's would be waited for at exit
    thread.start()
    try:
        # Not join(): Ctrl-C makes Python 3.11 take the thread for ended.
        futures.wait([outcome], patience_s)
    except BaseException:  # Ctrl-C
        is_undone_there = outcome.cancel()
        if undo is None:
            raise
        if not is_undone_there and outcome.exception() is None:
            undo(outcome.result())
        thread.join(10)
        if thread.is_alive():
            logger.warning("what was begun may go on: `torch-remote ps --all` lists it")
        raise
    if outcome.cancel():
        raise TimeoutError(failure)
    return outcome.result()


@contextmanager
def ending_on_failure(spec: Spec, stop: Callable[[], object]) -> Iterator[None]:
    """Ends what was launched, and forgets it, if the block fails or Ctrl-C interrupts it.

    What cannot be ended is not forgotten: `torch-remote ps` lists it. The block's error is raised.
    """
    try:
        yield
    except BaseException:
        try:
            stop()
            _running.forget(spec.name)
        except BaseException as error:  # a second Ctrl-C, too
            why = str(error) or type(error).__name__
            logger.warning("%s; `torch-remote down %s` tries it again", why, spec.name)
        raise
