"""Checks cases for run.py: a JSON object per line on stdin, an answer per line on stdout."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from dataclasses import asdict
from typing import Any, TextIO

KEY = ("suite", "op", "variant", "dtype")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", required=True)
    parser.add_argument("--suite", action="append", required=True)
    parser.add_argument("--samples", type=int)
    parser.add_argument("--full", action="store_true")
    options = parser.parse_args()

    answers = _take_stdout()
    warnings.simplefilter("ignore")
    backend = _import_backend(options.device)
    # Here, because torch.testing looks for the backend when it is imported.
    from cases import Scope, describe, outcome_of
    from suites import cases_of

    cases = cases_of(options.suite, Scope(full=options.full, samples=options.samples))
    _send(answers, {"cases": [dict(zip(KEY, key, strict=True)) for key in cases]})
    for line in sys.stdin:
        asked = json.loads(line)
        started = time.monotonic()
        before = _mispredicted(backend)
        outcome = outcome_of(cases[tuple(asked[name] for name in KEY)], options.device)
        answer = asdict(outcome)
        answer["seconds"] = round(time.monotonic() - started, 3)
        try:
            answer["mispredicted"] = _mispredicted(backend) - before
        # The session is lost: this answer counts, and the next case needs another process.
        except Exception as error:
            if answer["status"] == "passed":
                answer.update(status="failed", reason=describe(error))
            _send(answers, answer | {"mispredicted": 0, "last": True})
            return
        _send(answers, answer)


def _take_stdout() -> TextIO:
    """Keeps stdout for answers: what operators and libraries print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def _import_backend(device: str) -> Any:
    import torch

    # Workers share the cores; and with one thread sums have one order.
    torch.set_num_threads(1)
    if device == "cpu":
        return None
    import torch_remote

    return torch_remote


def _mispredicted(backend: Any) -> int:
    return int(backend.stats().mispredicted) if backend else 0


def _send(stream: TextIO, message: dict[str, Any]) -> None:
    print(json.dumps(message), file=stream, flush=True)


if __name__ == "__main__":
    main()
