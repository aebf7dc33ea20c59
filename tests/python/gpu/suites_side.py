"""One side of suites.py: runs cases on a device and saves their results."""

from __future__ import annotations

import argparse
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "conformance"))

# A kernel with equal results this many times counts as deterministic.
REPEATS = 3

Result = list[Any] | str  # leaves, or an error


def saved(leaf: Any) -> Any:
    """A leaf as it is saved: for a tensor its layout and a copy of its values."""
    if not isinstance(leaf, torch.Tensor):
        return leaf if isinstance(leaf, int | float | bool | str | type(None)) else repr(leaf)
    if leaf.layout != torch.strided:
        return str(leaf.layout)
    layout = (
        str(leaf.dtype),
        *map(tuple, (leaf.shape, leaf.stride())),
        leaf.is_conj(),
        leaf.is_neg(),
    )
    return {"layout": layout, "values": leaf.detach().cpu()}


def attempt(run: Callable[[str], Any], device: str) -> Result:
    from cases import describe
    from torch.utils._pytree import tree_leaves

    try:
        done = run(device)
        leaves = [*tree_leaves(done.results), *done.written_inputs(done)]
        return [saved(leaf) for leaf in leaves if not isinstance(leaf, torch.device)]
    except Exception as error:
        return describe(error)


def difference(want: Result, got: Result) -> str | None:
    """The difference as a text. A remote error may say more than a local one."""
    from comparing import Mismatch, _check_bits

    if isinstance(want, str) or isinstance(got, str):
        if isinstance(want, str) and isinstance(got, str) and want.split(": ", 1)[-1] in got:
            return None
        texts = [result if isinstance(result, str) else "no error" for result in (got, want)]
        return " instead of ".join(texts)
    if len(want) != len(got):
        return f"{len(got)} outputs instead of {len(want)}"
    for index, (one, other) in enumerate(zip(want, got, strict=True)):
        if not isinstance(one, dict) or not isinstance(other, dict):
            if one != other and one == one:
                return f"output {index}: {other!r} instead of {one!r}"
        elif one["layout"] != other["layout"]:
            return f"output {index}: {other['layout']} instead of {one['layout']}"
        else:
            try:
                _check_bits(f"output {index}", one["values"], other["values"])
            except Mismatch as error:
                return str(error)
    return None


def repeats(run: Callable[[str], Any], result: Result) -> bool:
    again = [attempt(run, "cuda") for _ in range(REPEATS - 1)]
    if any(difference(result, other) is not None for other in again):
        return False
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            deterministic = attempt(run, "cuda")
        finally:
            torch.use_deterministic_algorithms(False)
    said = any("deterministic" in str(warning.message) for warning in caught)
    return not said and difference(result, deterministic) is None


class Recorder:
    """Replaces both.compare()."""

    def __init__(self) -> None:
        self.samples: list[dict[str, Any]] = []

    def __call__(self, run: Callable[[str], Any], device: str, values: bool) -> str:
        result = attempt(run, device)
        steady = values and (device != "cuda" or repeats(run, result))
        self.samples.append({"result": result, "repeats": steady})
        return "compared"


def record(case: Any, device: str) -> list[dict[str, Any]]:
    import both

    both.recorder = recorder = Recorder()
    try:
        for _ in case.check(device):
            pass
    except Exception as error:  # samples that cannot be made: on both sides, or the counts differ
        recorder.samples.append({"result": f"{type(error).__name__}: {error}", "repeats": False})
    return recorder.samples


def chosen(options: argparse.Namespace) -> Iterator[tuple[tuple[str, ...], Any]]:
    from cases import Scope
    from suites import cases_of

    found = cases_of(options.suite, Scope(samples=options.samples, kind="cuda", derived=False))
    wanted = [(key, case) for key, case in found.items() if not options.op or key[1] in options.op]
    yield from wanted[options.shard :: options.shards]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("device")
    parser.add_argument("out", type=Path)
    parser.add_argument("shard", type=int)
    parser.add_argument("shards", type=int)
    parser.add_argument("--suite", action="append", required=True)
    parser.add_argument("--op", action="append")
    parser.add_argument("--samples", type=int)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    mispredicted = lambda: 0  # noqa: E731
    if options.device == "remote":
        import torch_remote

        mispredicted = lambda: torch_remote.stats().mispredicted  # noqa: E731
    results = {}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # suites.py: too late
    try:
        for key, case in chosen(options):
            print(*key, flush=True)
            before = mispredicted()
            samples = record(case, options.device)
            results[key] = {"samples": samples, "mispredicted": mispredicted() - before}
    finally:
        torch.save(results, options.out)


if __name__ == "__main__":
    main()
