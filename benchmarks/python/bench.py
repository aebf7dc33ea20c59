"""All figures of the project with their bars. Exits 1 if one misses its bar.

    python benchmarks/python/bench.py [--check counts] [--only GROUP] [--quick] [--json FILE]

Prints a table and writes build/bench.json. Every group of figures runs in its own process, so that
none affects another.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parents[1] / "build" / "bench.json"
TIMEOUT_S = 900

# group: (module, function); functions return a list of figures.
COUNTS = {
    "syncs": ("counts", "syncs_of_a_training_step"),
    "adamw": ("counts", "calls_of_an_adamw_step"),
    "schedule": ("counts", "signatures_of_a_learning_rate_schedule"),
    "kv-cache": ("counts", "signatures_of_a_kv_cache"),
    "bytes": ("counts", "bytes_per_call"),
    "replay": ("graphs", "messages_of_a_replay"),
    "compiled": ("compiled", "calls_of_a_step"),
}
TIMES = {
    "cached": ("client_time", "time_per_cached_call"),
    "cached-wall": ("client_time", "wall_time_of_cached_calls"),
    "new-shapes": ("client_time", "time_per_call_with_a_new_shape"),
    "memory": ("memory", "growth_with_ever_new_shapes"),
    "gpt": ("training", "small_gpt_against_cpu"),
    "bulk": ("bulk", "rate_of_bulk_copies"),
    "tls": ("tls", "figures_of_tls"),
    "network": ("training", "training_over_a_slow_network"),
    "replay-time": ("graphs", "time_of_a_replay"),
    "replay-network": ("graphs", "replays_over_a_slow_network"),
    "redirect": ("redirect", "cost_of_redirected_calls"),
    "compiled-small": ("compiled", "times_of_the_small_model"),
    "compiled-deep": ("compiled", "times_of_the_deep_model"),
}
GROUPS = COUNTS | TIMES

Figures = dict[str, dict[str, Any]]


def measure_here(group: str, quick: bool) -> Figures:
    module, function = GROUPS[group]
    arguments = {"quick": quick} if group == "memory" else {}
    figures = getattr(importlib.import_module(module), function)(**arguments)
    return {figure.name: figure.as_dict() for figure in figures}


def measure_in_a_process(group: str, quick: bool) -> Figures:
    """A group that crashes or takes too long misses its bar; the others still run."""
    command = [
        sys.executable,
        str(Path(__file__)),
        "--measure",
        group,
        *(["--quick"] if quick else []),
    ]
    try:
        finished = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return _missing(group, f"no figure in {TIMEOUT_S} s")
    if finished.returncode:
        print(finished.stderr, file=sys.stderr)
        lines = finished.stderr.strip().splitlines() or [f"exit status {finished.returncode}"]
        return _missing(group, lines[-1])
    return dict(json.loads(finished.stdout.splitlines()[-1]))


def _missing(group: str, reason: str) -> Figures:
    return {group: {"value": None, "bar": None, "ok": False, "reason": reason}}


def print_row(name: str, figure: dict[str, Any]) -> None:
    verdict = "ok" if figure["ok"] else "MISSED"
    if figure["value"] is None:
        print(f"{name:<52} {figure['reason']}   {verdict}", flush=True)
        return
    value = f"{figure['value']:.3g} {figure['unit']}".strip()
    bar = f"{figure['relation']} {figure['bar']:.3g}"
    print(f"{name:<52} {value:>12} {bar:>10}   {verdict}", flush=True)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Measures the figures and compares them with their bars."
    )
    parser.add_argument(
        "--check", choices=["all", "counts"], default="all", help="counts: what no noise can change"
    )
    parser.add_argument(
        "--only", action="append", choices=GROUPS, help="only this group; repeatable"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the calls for the figure on memory"
    )
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the figures are written")
    parser.add_argument("--measure", choices=GROUPS, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    options = parse_options()
    if options.measure:
        print(json.dumps(measure_here(options.measure, options.quick)))
        return 0
    groups = options.only or (COUNTS if options.check == "counts" else GROUPS)
    print(f"{'figure':<52} {'value':>12} {'bar':>10}", flush=True)
    figures: Figures = {}
    for group in groups:
        measured = measure_in_a_process(group, options.quick)
        figures |= measured
        for name, figure in measured.items():
            print_row(name, figure)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(figures, indent=2, ensure_ascii=False) + "\n")
    missed = [name for name, figure in figures.items() if not figure["ok"]]
    print(f"{len(figures) - len(missed)} met, {len(missed)} missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
