"""The kernel suite: a server runs the kernels that PyTorch runs locally, and no more.

    python tests/python/conformance/kernel_suite.py [--server cpu|cuda] [--module NAME]
        [--samples 8] [--write-counts]

Every module of module_db runs in a local process and in one that uses `remote`. Compared are the
server's log with the tree of local operators (kernel_trees.py), the number of calls with the number
of local kernels, and with call_counts.json. Exits 1 on a difference.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kernel_trees
import torch
from kernel_cases import module_names, optimizer_names
from kernel_sides import Trace, traces

COUNTS = Path(__file__).with_name("call_counts.json")
TIMEOUT_S = 1200
# In evaluation PyTorch makes a nested tensor of a padded batch. We cut the padding off with other
# operators, which do not wait: Note [Nested tensors] in src/client/kernels/nested.h.
NESTED = "aten::_nested_"

Sides = dict[str, dict[str, Trace]]  # by device, by case


@dataclass
class Outcome:
    passed: int = 0
    gaps: int = 0
    failures: list[str] = field(default_factory=list)

    def print_to(self, out: Any = sys.stdout) -> None:
        for failure in self.failures:
            print(f"FAILED {failure}", file=out)
        print(
            f"kernels: {self.passed} passed, {len(self.failures)} failed, "
            f"{self.gaps} expected gaps",
            file=out,
        )


def run(server: str = "cpu", modules: list[str] | None = None, samples: int = 8) -> Outcome:
    """The whole suite; `server` is the kind of device that an embedded server finds here."""
    chosen = modules or module_names() + optimizer_names()
    sides = both_sides(server, chosen, samples)
    outcome = compare(sides[server], sides["remote"], server)
    compare_counts(outcome, sides["remote"], server)
    return outcome


def both_sides(server: str, modules: list[str], samples: int) -> Sides:
    """Each side in its own process: local CUDA and an embedded CUDA server must not share one."""
    sides: Sides = {}
    with tempfile.TemporaryDirectory() as folder:
        for device in (server, "remote"):
            path = Path(folder) / f"{device}.json"
            command = [
                sys.executable,
                "-W",
                "ignore",
                __file__,
                "--side",
                device,
                "--out",
                str(path),
            ]
            command += ["--samples", str(samples)]
            command += [word for name in modules for word in ("--module", name)]
            environment = os.environ | {"TORCH_REMOTE_LOG_CALLS": f"{folder}/calls"}
            subprocess.run(command, env=environment, check=True, timeout=TIMEOUT_S)
            sides[device] = json.loads(path.read_text())
    return sides


def compare(local: dict[str, Trace], remote: dict[str, Trace], server: str) -> Outcome:
    outcome = Outcome()
    for case, trees in local.items():
        if case.startswith("optim."):  # the CPU has no foreach kernels
            continue
        calls = remote.get(case, remote[case.replace("backward", "forward")])  # one that raised
        if has_nested(trees):
            outcome.gaps += 1
        elif found := difference(trees, calls, server):
            outcome.failures.append(f"{case}: {found}")
        else:
            outcome.passed += 1
    return outcome


def has_nested(trees: list[Any]) -> bool:
    """Whether the local run handled a nested tensor. One that raised is its text."""
    return any(
        not isinstance(tree, str) and (tree[0].startswith(NESTED) or has_nested(tree[1]))
        for tree in trees
    )


def difference(trees: list[Any], calls: list[str], server: str) -> str | None:
    if trees and isinstance(trees[0], str):  # it raised
        return None if calls[:1] == trees else f"locally {trees[0]}, on remote {calls[:1]}"
    backend = server.upper()
    calls = [call for call in calls if not kernel_trees.is_question(call)]
    if found := kernel_trees.difference(trees, calls, backend):
        return found
    kernels = list(kernel_trees.kernels(trees, backend))
    if len(calls) > len(kernels):
        extra = Counter(calls) - Counter(kernels)
        return f"{len(calls)} calls for {len(kernels)} kernels, more are {dict(extra)}"
    return None


def count_key(server: str) -> str:
    minor = ".".join(torch.__version__.split(".")[:2])
    return f"torch {minor}, {server}"


def counts_of(remote: dict[str, Trace]) -> dict[str, int]:
    """Of each module or optimizer: the calls of all passes over its first sample."""
    counts: Counter[str] = Counter()
    for case, calls in sorted(remote.items()):
        name, _, sample, *_ = case.split()
        if sample == "0":
            counts[name] += len(calls)
    return dict(counts)


def compare_counts(outcome: Outcome, remote: dict[str, Trace], server: str) -> None:
    stored = json.loads(COUNTS.read_text()).get(count_key(server))
    if stored is None:
        print(f"no call counts are stored for {count_key(server)}: see --write-counts")
        return
    for name, count in counts_of(remote).items():
        if stored.get(name) == count:
            outcome.passed += 1
        else:
            outcome.failures.append(f"{name}: {count} calls, stored are {stored.get(name)}")


def write_counts(remote: dict[str, Trace], server: str) -> None:
    tables = json.loads(COUNTS.read_text()) if COUNTS.exists() else {}
    tables[count_key(server)] = tables.get(count_key(server), {}) | counts_of(remote)
    COUNTS.write_text(json.dumps(tables, indent=1, sort_keys=True) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--server", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--module", action="append", help="only this one, as nn.LSTM; repeatable")
    parser.add_argument("--samples", type=int, default=8, help="at most so many of each module")
    parser.add_argument("--write-counts", action="store_true", help="rewrite call_counts.json")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        found = traces(options.module, options.side, options.samples)
        options.out.write_text(json.dumps(found))
        return 0
    chosen = options.module or module_names() + optimizer_names()
    if options.write_counts:
        write_counts(both_sides(options.server, chosen, 1)["remote"], options.server)
        return 0
    outcome = run(options.server, chosen, options.samples)
    outcome.print_to()
    return 1 if outcome.failures else 0


if __name__ == "__main__":
    sys.exit(main())
