"""Worker processes that may crash or hang, each restarted when it does."""

from __future__ import annotations

import json
import queue
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

WORKER = Path(__file__).with_name("worker.py")
START_TIMEOUT_S = 120.0

Answer = dict[str, Any]


class WorkerDied(Exception):
    """The process crashed or was killed for taking too long; the text says which."""


class Worker:
    """One worker process. Confined to the thread that made it."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed by close()
        self._process = subprocess.Popen(
            [sys.executable, str(WORKER), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        self._unread = b""
        self.plan: list[dict[str, str]] = self._receive(START_TIMEOUT_S)["cases"]

    def ask(self, case: dict[str, str], timeout_s: float) -> Answer:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(case).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._death() from None
        return self._receive(timeout_s)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                stream.close()

    def _receive(self, timeout_s: float) -> Answer:
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                raise WorkerDied(f"timeout: no answer in {timeout_s:g} s")
            chunk = self._process.stdout.read1(1 << 16)  # type: ignore[attr-defined]
            if not chunk:
                raise self._death()
            self._unread += chunk
        line, self._unread = self._unread.split(b"\n", 1)
        return dict(json.loads(line))

    def _death(self) -> WorkerDied:
        status = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return WorkerDied(f"crash: exit status {status}: {lines[-1] if lines else 'no message'}")


class Pool:
    """Checks cases with several workers, one thread for each."""

    def __init__(self, jobs: int, arguments: Sequence[str], timeout_s: float) -> None:
        self._jobs = jobs
        self._arguments = arguments
        self._timeout_s = timeout_s
        self._cases: queue.SimpleQueue[dict[str, str]] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[dict[str, str], Answer] | Exception | None] = (
            queue.SimpleQueue()
        )

    def plan(self) -> list[dict[str, str]]:
        """All cases there are, as a worker lists them."""
        worker = Worker(self._arguments)
        worker.close()
        return worker.plan

    def run(
        self, cases: list[dict[str, str]], report: Callable[[dict[str, str], Answer], None]
    ) -> None:
        """Calls `report` on this thread for every case, in the order in which they finish."""
        for case in cases:
            self._cases.put(case)
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(self._jobs)]
        for thread in threads:
            thread.start()
        finished = 0
        while finished < len(threads):
            item = self._answers.get()
            if item is None:
                finished += 1
            elif isinstance(item, Exception):
                raise item
            else:
                report(*item)

    def _work(self) -> None:
        worker: Worker | None = None
        try:
            while True:
                case = self._cases.get_nowait()
                worker = worker or Worker(self._arguments)
                answer = self._ask(worker, case)
                self._answers.put((case, answer))
                if answer.get("last"):
                    worker.close()
                    worker = None
        except queue.Empty:
            self._answers.put(None)
        # A worker cannot start: the run ends with its message instead of waiting for ever.
        except WorkerDied as error:
            self._answers.put(error)
        finally:
            if worker is not None:
                worker.close()

    def _ask(self, worker: Worker, case: dict[str, str]) -> Answer:
        try:
            return worker.ask(case, self._timeout_s)
        except WorkerDied as error:
            return {
                "status": "failed",
                "reason": str(error),
                "samples": 0,
                "seconds": self._timeout_s,
                "mispredicted": 0,
                "details": "",
                "last": True,
            }
