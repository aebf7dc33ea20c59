"""Client time per call on a GPU machine: local CUDA against `remote` on the same GPU.

    python benchmarks/python/gpu_calls.py FOLDER

Writes FOLDER/gpu_calls.json, and a table, FOLDER/gpu_calls.md. Each side runs in its own process:
once the backend is named, autograd on local CUDA is broken (pytorch#161129).
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from figure import elapsed, geometric_mean
from operators import call_times, make_inputs, operators

ROUNDS = 15
CALLS = 500  # fewer than a CUDA stream queues before a launch waits
SIDE = 8
TIMEOUT_S = 300
SIDES = ("cuda", "remote")


def measure(device: str) -> dict[str, Any]:
    """Microseconds of the thread's CPU time per call, by operator: the best of all rounds."""
    if device == "remote":
        import torch_remote

        synchronize = torch_remote.synchronize
    else:
        synchronize = torch.cuda.synchronize
    microseconds = {}
    for name, call in operators(*make_inputs(device, SIDE, SIDE)).items():
        call_times(call, CALLS)
        rounds = []
        for _ in range(ROUNDS):
            synchronize()
            rounds.append(elapsed(lambda call=call: call_times(call, CALLS), time.thread_time))
        microseconds[name] = min(rounds) / CALLS * 1e6
    synchronize()
    # Last, and for a local GPU only: it would start CUDA in the client of a remote one.
    gpu = torch.cuda.get_device_name() if device == "cuda" else None
    return {"microseconds": microseconds, "gpu": gpu}


def measure_in_a_process(device: str) -> dict[str, Any]:
    # PyTorch parses this variable in every matrix product: mm on local CUDA would be 6 times
    # slower.
    environment = {k: v for k, v in os.environ.items() if k != "CUBLAS_WORKSPACE_CONFIG"}
    finished = subprocess.run(
        [sys.executable, str(Path(__file__)), "--device", device],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=TIMEOUT_S,
    )
    return dict(json.loads(finished.stdout.splitlines()[-1]))


def machine(gpu: str) -> str:
    """The machine's processor and GPU, without which a time means nothing."""
    found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    processor = found.group(1) if found else "an unknown processor"
    return f"one {gpu}, {os.cpu_count()} cores of {processor}"


def summarise(cuda: dict[str, Any], remote: dict[str, Any]) -> dict[str, Any]:
    ratios = {
        name: remote["microseconds"][name] / value for name, value in cuda["microseconds"].items()
    }
    return {
        "what": f"calling thread's CPU time per call, µs, {SIDE}×{SIDE} tensors",
        "date": datetime.date.today().isoformat(),
        "machine": machine(cuda["gpu"]),
        "torch": torch.__version__,
        "cuda_us": cuda["microseconds"],
        "remote_us": remote["microseconds"],
        "remote_to_cuda": ratios,
        "geometric_mean": geometric_mean(ratios.values()),
    }


def table(summary: dict[str, Any]) -> str:
    lines = ["| operator | local CUDA, µs | remote, µs | ratio |", "| --- | ---: | ---: | ---: |"]
    for name, ratio in summary["remote_to_cuda"].items():
        cuda, remote = summary["cuda_us"][name], summary["remote_us"][name]
        lines.append(f"| {name} | {cuda:.2f} | {remote:.2f} | {ratio:.2f} |")
    mean = summary["geometric_mean"]
    return "\n".join([*lines, f"| geometric mean | | | {mean:.2f} |"]) + "\n"


def report(summary: dict[str, Any]) -> str:
    return (
        "# Client time per call, local CUDA against remote on the same GPU\n\n"
        f"{summary['date']}, {summary['machine']}, torch {summary['torch']}: {summary['what']}, "
        f"the best of {ROUNDS} rounds of {CALLS} calls, by `benchmarks/python/gpu_calls.py`.\n\n"
        + table(summary)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Client time per call, local CUDA against remote.")
    parser.add_argument(
        "folder", type=Path, nargs="?", default=Path(), help="where to write the JSON"
    )
    parser.add_argument("--device", choices=SIDES, help="measure one side only and print it")
    options = parser.parse_args()
    if options.device:
        print(json.dumps(measure(options.device)))
        return
    summary = summarise(*map(measure_in_a_process, SIDES))
    options.folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(summary, indent=2, ensure_ascii=False) + "\n"
    (options.folder / "gpu_calls.json").write_text(text)
    (options.folder / "gpu_calls.md").write_text(report(summary))
    print(table(summary))


if __name__ == "__main__":
    main()
