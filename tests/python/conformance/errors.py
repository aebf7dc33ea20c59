"""Errors: every error_inputs of op_db and module_db, on the device and on the CPU.

    python tests/python/conformance/errors.py [--op NAME] [--verbose]

A mistake must raise the CPU's exception, type and text, at the call; with TORCH_REMOTE_BLOCKING=1
always. What only a kernel refuses may be raised at the read the first time, with the kernel's
text, if late_errors.py lists it, and at the call the second time.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from late_errors import LATE_ERRORS

BLOCKING = "TORCH_REMOTE_BLOCKING"
DEADLINE_S = 600

# Allowed outcomes; all others are failures.
EQUAL = "equal"  # at the call, with the CPU's type and text
LATE = "late"  # at the read with the kernel's text, and equal the second time


@dataclass(frozen=True)
class Mistake:
    """One error input, named after its operator and its index there."""

    owner: str
    number: int
    run: Callable[[str], Any]  # with a new copy of the input each time

    @property
    def name(self) -> str:
        return f"{self.owner} {self.number}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--op", action="append", help="only this OpInfo or module; repeatable")
    parser.add_argument("--verbose", action="store_true", help="print every error that is late")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return _work(options.op)
    return check(options.op, options.verbose)


def check(ops: list[str] | None = None, verbose: bool = False) -> int:
    """Runs both modes, each in its own process, and prints the result; 1 on a failure."""
    modes = {"streamed": _start(ops, "0"), "blocking": _start(ops, "1")}
    failed = False
    for mode, process in modes.items():
        output, _ = process.communicate(timeout=DEADLINE_S)
        if process.returncode != 0:
            print(f"errors, {mode}: the worker ended with status {process.returncode}")
            failed = True
            continue
        failed |= _judge(mode, json.loads(output), ops is not None, verbose)
    return int(failed)


def _start(ops: list[str] | None, blocking: str) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--worker", *(f"--op={op}" for op in ops or [])]
    environment = {**os.environ, BLOCKING: blocking}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def _judge(mode: str, found: dict[str, list[str]], is_part: bool, verbose: bool) -> bool:
    """Whether an outcome is not allowed."""
    allowed = (
        {name for names in LATE_ERRORS.values() for name in names} if mode == "streamed" else set()
    )
    failures = {}
    for name, (outcome, details) in found.items():
        if outcome == LATE and name in allowed:
            if verbose:
                print(f"late {name}: {details}")
        elif outcome != EQUAL:
            failures[name] = f"{outcome}: {details}"
        elif name in allowed:
            failures[name] = "comes at the call, but is listed in late_errors.py"
    if not is_part:
        failures |= {
            name: "is listed, but there is no such input" for name in allowed if name not in found
        }
    for name, why in failures.items():
        print(f"FAILED {mode} {name}: {why}")
    counts = Counter(outcome for outcome, _ in found.values())
    print(
        f"errors, {mode}: {counts[EQUAL]} of {len(found)} equal at the call, {counts[LATE]} late, "
        f"{len(failures)} failed"
    )
    return bool(failures)


# --- the worker


def _work(ops: list[str] | None) -> int:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keeps what operators print out of the answer
    warnings.simplefilter("ignore")
    _import_backend()  # before torch.testing, which looks for the backend
    found = {mistake.name: _try(mistake) for mistake in _mistakes(ops)}
    json.dump(found, answers)
    answers.close()
    return 0


def _import_backend() -> None:
    import torch

    import torch_remote  # noqa: F401

    torch.set_num_threads(1)


def _mistakes(ops: list[str] | None) -> Iterator[Mistake]:
    from suites.ops import CUDA_SOURCE
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.common_utils import set_rng_seed

    for op in op_db:
        if op.error_inputs_func is None or (ops and op.full_name not in ops):
            continue
        if op.name.startswith(CUDA_SOURCE):  # refused here, and fails on a CPU before any check
            continue
        set_rng_seed(0)
        for number, mistake in enumerate(op.error_inputs("cpu")):
            yield Mistake(op.full_name, number, _run_operator(op, mistake.sample_input))
    yield from _module_mistakes(ops)


def _run_operator(op: Any, sample: Any) -> Callable[[str], Any]:
    from moving import Mover

    def run(device: str) -> Any:
        value, args, kwargs = Mover(device).move_sample(sample)
        return op(value, *args, **kwargs), value, args, kwargs

    return run


def _module_mistakes(ops: list[str] | None) -> Iterator[Mistake]:
    import torch
    from torch.testing._internal.common_modules import ModuleErrorEnum, module_db

    for info in module_db:
        name = "nn." + info.name.removeprefix("nn.")
        if info.module_error_inputs_func is None or (ops and name not in ops):
            continue
        inputs = info.module_error_inputs_func(
            info, device="cpu", dtype=torch.float32, requires_grad=False, training=True
        )
        for number, mistake in enumerate(inputs):
            constructs = mistake.error_on is ModuleErrorEnum.CONSTRUCTION_ERROR
            yield Mistake(name, number, _run_module(info, mistake.module_error_input, constructs))


def _run_module(info: Any, inputs: Any, constructs: bool) -> Callable[[str], Any]:
    import torch
    from moving import Mover

    def run(device: str) -> Any:
        mover = Mover(device)
        torch.manual_seed(0)
        made = inputs.constructor_input
        module = info.module_cls(*mover.move(made.args), **mover.move(made.kwargs))
        if constructs:
            return module
        given = inputs.forward_input
        return module.to(device)(*mover.move(given.args), **mover.move(given.kwargs))

    return run


def _try(mistake: Mistake) -> tuple[str, str]:
    """The outcome, and what was raised instead."""
    expected = _error_of(lambda: mistake.run("cpu"))
    if expected is None:
        return (
            ("equal", "")
            if _error_of(lambda: _read(mistake.run("remote"))) is None
            else ("too strict", "")
        )
    import torch_remote

    result: list[Any] = []
    raised = _error_of(lambda: result.append(mistake.run("remote")))
    if raised is not None and not isinstance(raised, torch_remote.RemoteError):
        return _compare(expected, raised)
    if raised is None:  # else a later call of the same operator has told it
        raised = _error_of(lambda: _read(result[0]))
    if raised is None:
        return "silent", _describe(expected)
    if _words(expected) not in _words(raised):
        return "other text at the read", f"{_describe(raised)}\n  CPU: {_describe(expected)}"
    again = _error_of(lambda: mistake.run("remote"))
    if again is None:
        return "late the second time", _describe(expected)
    outcome, details = _compare(expected, again)
    return (LATE, _describe(expected)) if outcome == EQUAL else (outcome, details)


def _compare(expected: Exception, raised: Exception) -> tuple[str, str]:
    difference = f"{_describe(raised)}\n  CPU: {_describe(expected)}"
    if type(raised) is not type(expected):
        return "other type", difference
    return (EQUAL, "") if _words(raised) == _words(expected) else ("other text", difference)


def _error_of(function: Callable[[], Any]) -> Exception | None:
    try:
        function()
    except Exception as error:
        return error
    return None


def _read(value: Any) -> None:
    import torch
    from torch.utils._pytree import tree_leaves

    for leaf in tree_leaves(value):
        if isinstance(leaf, torch.Tensor) and leaf.device.type == "remote":
            leaf.detach().cpu()


def _words(error: Exception) -> str:
    """The error's text, with the device's name replaced by the CPU's."""
    return re.sub(r"\b(remote(:0)?|privateuseone(:0)?)\b", "cpu", str(error))


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:300]}"


if __name__ == "__main__":
    sys.exit(main())
