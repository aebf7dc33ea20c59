"""The conformance suites on a CUDA server: `remote` gives what local CUDA gives in another process.

    python tests/python/gpu/suites.py [--suite NAME] [--op NAME] [--shards 7] [--samples 20]
        [--against cuda]

Samples are made on the CPU, each side saves its results, and they are compared. Kernels that give
other bits in a second run, or that PyTorch declares nondeterministic, cannot be compared bit for
bit: their layouts are compared, and they are counted separately.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SIDE = HERE / "suites_side.py"
# In these suites, cases that fail on local CUDA itself are not compared.
TRACED = ("functorch", "trace", "compile", "export")
SUITES = ("ops", "sparse", "modules", "optimizers", *TRACED)
TIMEOUT_S = 330
GRACE_S = 20  # to save results
# A fixed cuBLAS workspace; and some OpInfos iterate over sets of strings to make samples.
ENVIRONMENT = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "PYTHONHASHSEED": "0"}

# (entry, variant): why a difference is not our fault.
EXPECTED: dict[tuple[str, str], str] = {
    ("renorm", "backward"): "PyTorch's formula picks the accumulation by the device's name",
    ("renorm", "inplace"): "the same formula",
    (
        "to",
        "backward",
    ): "a sample names local CUDA, whose autograd PyTorch breaks beside another backend",
    **{("to", variant): "the same; backward is part of it" for variant in ("vjp", "vmap of vjp")},
    **{
        ("sgn", f"{layout}_backward"): "PyTorch has no such kernel; the error has another text"
        for layout in ("coo", "csr", "csc", "bsr", "bsc")
    },
    ("randn_like", "coo"): "a sample names local CUDA; both sides raise, with other texts",
    ("split_with_sizes_copy", "out"): "PyTorch's CUDA kernel does not count its writes",
    ("Adagrad", "fused"): "not on CUDA; PyTorch asks for the device's name",
    **{
        (f"jiterator_{kind}", "forward"): "CUDA source is not sent"
        for kind in ("unary", "binary", "binary_return_by_ref", "2inputs_2outputs")
    },
    ("jiterator_4inputs_with_extra_args", "forward"): "CUDA source is not sent",
}
# Kernels that sum in any order or leave memory unwritten, which PyTorch does not declare.
UNSTEADY = frozenset(
    [
        "cummax",
        "cummin",
        "nn.CrossEntropyLoss",
        "nn.AdaptiveMaxPool2d",
        "nn.AdaptiveMaxPool3d",
        "torch.ops.aten._efficient_attention_forward",
        "torch.ops.aten._flash_attention_forward",
    ]
)
REFUSAL = "NotImplementedError: "
NOT_HELD = "a remote device holds dense, sparse and nested tensors"

Side = dict[str, Any]


class Shard:
    """A process that runs a part of the cases on one side."""

    def __init__(self, side: str, number: int, folder: Path, options: argparse.Namespace) -> None:
        self.name = f"{side} {number}"
        self.results = folder / f"{side}-{number}.pt"
        self._log = folder / f"{side}-{number}.log"
        command = [sys.executable, str(SIDE), side, str(self.results), str(number)]
        command += [str(options.shards), "--samples", str(options.samples)]
        for flag, values in (("--suite", options.suite or SUITES), ("--op", options.op or ())):
            command += [part for value in values for part in (flag, value)]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command, env=os.environ | ENVIRONMENT, stdout=log, stderr=log
            )

    def _stop(self) -> None:
        """The process saves the results that it has."""
        self._process.terminate()
        try:
            self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def wait(self, deadline: float) -> bool:
        """Prints the output of a failure, and every misprediction."""
        try:
            status: int | str = self._process.wait(max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._stop()
            status = "too late"
        lines = self._log.read_text(errors="replace").splitlines()
        said = lines[-12:] if status else [line for line in lines if "mispredicted" in line]
        if said:
            print(f"{self.name}: exit status {status}", *said, sep="\n  ")
        return status == 0


def run_sides(options: argparse.Namespace, folder: Path) -> tuple[Side, Side, bool]:
    import torch

    sides = ["cuda", options.against]
    folders = [folder / str(index) for index in range(2)]
    for each in folders:
        each.mkdir()
    shards = [
        [Shard(side, number, each, options) for number in range(options.shards)]
        for side, each in zip(sides, folders, strict=True)
    ]
    deadline = time.monotonic() + TIMEOUT_S
    finished = [shard.wait(deadline) for side in shards for shard in side]
    found: list[Side] = []
    for side in shards:
        found.append({})
        for shard in side:
            if shard.results.exists():
                found[-1] |= torch.load(shard.results, weights_only=False)
    return found[0], found[1], all(finished)


def judge(suite: str, entry: str, want: Side, got: Side | None) -> tuple[str, str]:
    from suites_side import difference

    if got is None:
        return "failed", "the other side did not get so far"
    if len(want["samples"]) != len(got["samples"]):
        return "failed", f"{len(got['samples'])} samples instead of {len(want['samples'])}"
    varies = False
    for index, (one, other) in enumerate(zip(want["samples"], got["samples"], strict=True)):
        if suite in TRACED and isinstance(one["result"], str):
            continue
        if isinstance(other["result"], str) and NOT_HELD in other["result"]:
            is_refusal = other["result"].startswith(REFUSAL)
            return "refused" if is_refusal else "failed", other["result"]
        found = difference(one["result"], other["result"])
        repeats = one["repeats"] and entry not in UNSTEADY
        if found and (repeats or "values differ" not in found):
            return "failed", f"sample {index}: {found}"
        varies |= not repeats
    if got["mispredicted"]:
        return "failed", f"mispredicted {got['mispredicted']}"
    return "varies" if varies else "passed", ""


def report(want: Side, got: Side) -> int:
    """Prints a table by suite; returns the number of failures."""
    table: dict[str, Counter[str]] = {}
    for key, case in want.items():
        suite, entry, variant, _dtype = key
        verdict, why = judge(suite, entry, case, got.get(key))
        if (entry, variant) in EXPECTED:
            verdict = "failed" if verdict in ("passed", "varies") else "gap"
            why = why or "passes, but is listed as expected"
        table.setdefault(suite, Counter())[verdict] += 1
        if verdict == "failed":
            print(f"FAILED {' '.join(key)}: {why[:300]}")
    for suite, counts in table.items():
        print(
            f"{suite}: {counts['passed']} passed, {counts['failed']} failed, "
            f"{counts['gap']} expected gaps, "
            f"{counts['refused']} refused (not dense), "
            f"{counts['varies']} of which CUDA does not repeat every value"
        )
    return sum(counts["failed"] for counts in table.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--suite", action="append", choices=SUITES, help="repeatable")
    parser.add_argument("--op", action="append", help="only this entry; repeatable")
    parser.add_argument("--shards", type=int, default=7, help="processes on each side")
    parser.add_argument("--samples", type=int, default=20, help="at most so many per case")
    parser.add_argument("--against", default="remote", help="cuda checks the suites themselves")
    options = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        want, got, finished = run_sides(options, Path(folder))
    failed = report(want, got)
    print(f"{len(want)} cases in {time.monotonic() - started:.0f} s")
    return 1 if failed or not finished or not want else 0


if __name__ == "__main__":
    sys.exit(main())
