"""The sync budget: which OpInfos wait for the server, and which must.

    python tests/python/conformance/sync_budget.py [--op NAME] [--jobs 2]

Every sample runs twice. The second run may wait only if WAITS (sync_table.py) lists the OpInfo, and
each listed one must wait in some sample. ASKS lists those that ask the server in the first run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import warnings
from typing import Any

from sync_table import ASKS, WAITS

DEADLINE_S = 900


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--op", action="append", help="only this OpInfo; repeatable")
    parser.add_argument("--jobs", type=int, default=2, help="worker processes")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part is not None:
        return _work(options.op, *map(int, options.part.split("/")))
    return check(options.op, options.jobs)


def check(ops: list[str] | None = None, jobs: int = 2) -> int:
    """Runs all OpInfos and prints what differs from the table; 1 if anything does."""
    found: dict[str, dict[str, int]] = {}
    workers = [_start(ops, f"{part}/{jobs}") for part in range(jobs)]
    for worker in workers:
        output, _ = worker.communicate(timeout=DEADLINE_S)
        if worker.returncode != 0:
            print(f"sync budget: a worker ended with status {worker.returncode}")
            return 1
        found |= json.loads(output)
    failures = _judge(found, is_part=ops is not None)
    for failure in failures:
        print(f"FAILED {failure}")
    waiting = sum(1 for counts in found.values() if counts["waits"])
    asking = sum(1 for counts in found.values() if counts["asks"])
    print(
        f"sync budget: {len(found)} OpInfos, {waiting} wait, {asking} ask the first time, "
        f"{len(failures)} failed"
    )
    return int(bool(failures))


def _start(ops: list[str] | None, part: str) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--part", part, *(f"--op={op}" for op in ops or [])]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _judge(found: dict[str, dict[str, int]], is_part: bool) -> list[str]:
    failures = []
    tables = (("waits", WAITS, "waits"), ("asks", ASKS, "asks the server the first time"))
    for key, table, what in tables:
        listed = {op for ops in table.values() for op in ops}
        seen = {op for op, counts in found.items() if counts[key]}
        failures += [f"{op} {what}, and is not listed" for op in sorted(seen - listed)]
        gone = {op for op in listed - seen if op in found or not is_part}
        failures += [f"{op} is listed, and never {what}" for op in sorted(gone)]
    return failures


# --- the worker


def _work(ops: list[str] | None, part: int, parts: int) -> int:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keeps what operators print out of the answer
    warnings.simplefilter("ignore")
    _import_backend()  # before torch.testing, which looks for the backend
    import torch.testing._utils
    from torch.testing._internal.common_methods_invocations import op_db

    # torch.testing wraps random operators to read and restore the generator's state, which waits.
    torch.testing._utils.freeze_rng_state = contextlib.nullcontext
    chosen = [op for op in op_db if not ops or op.full_name in ops]
    found = {op.full_name: _count(op) for op in chosen[part::parts]}
    json.dump({name: counts for name, counts in found.items() if counts}, answers)
    answers.close()
    return 0


def _import_backend() -> None:
    import torch

    import torch_remote  # noqa: F401

    torch.set_num_threads(1)


def _count(op: Any) -> dict[str, int]:
    """How often the second run waits and the first asks, over all samples; {} without samples."""
    import torch

    import torch_remote

    dtype = next((d for d in (torch.float32, torch.int64, torch.bool) if d in op.dtypes), None)
    if dtype is None:
        return {}
    counts = {"waits": 0, "asks": 0}
    torch.manual_seed(0)
    for sample in op.sample_inputs("cpu", dtype):
        with torch_remote.count() as first:
            ran = _runs(op, sample)
        if not ran:
            continue
        counts["asks"] += first.inferred_by_server
        counts["waits"] += _waits(op, sample)
    return counts


def _prepare(op: Any, sample: Any) -> tuple[Any, ...]:
    from moving import Mover
    from suites.ops import FACTORIES, HOST_ARGUMENTS

    mover = Mover("remote", host_arguments=op.name in HOST_ARGUMENTS)
    value, args, kwargs = mover.move_sample(sample)
    if op.name in FACTORIES:
        kwargs.setdefault("device", "remote")
    return value, args, kwargs


def _runs(op: Any, sample: Any) -> bool:
    """Runs the sample on the device if the CPU accepts it, and returns whether it does."""
    try:
        value, args, kwargs = _prepare(op, sample)
        op(value, *args, **kwargs)
    except Exception:  # also for sparse samples, which cannot be moved
        return False
    return True


def _waits(op: Any, sample: Any) -> int:
    import torch_remote

    value, args, kwargs = _prepare(op, sample)
    with torch_remote.count() as second:
        op(value, *args, **kwargs)
    return int(second.syncs)


if __name__ == "__main__":
    sys.exit(main())
