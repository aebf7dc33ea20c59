"""Measures the connection to a server: round trip, calls per second and bandwidth.

Then it says what the figures mean for training there. It takes some seconds and little memory.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from .. import machine
from ..errors import OK, CommandError
from ..output import Waiting, bytes_text, count_text, duration_text, print_json

if TYPE_CHECKING:
    import torch

EPILOG = """\
examples:
  torch-remote bench                                   the default machine
  torch-remote bench --on tcp://127.0.0.1:4711 --token-file ~/.torch-remote-token
  torch-remote bench --on unix://$XDG_RUNTIME_DIR/torch-remote/gpu.sock --json

exit status: 0; 1 the token file cannot be used, or the server has no memory left; 2 wrong usage;
3 nobody answers; 4 the token is refused
"""

ENOUGH = 0.4  # seconds that one measurement takes at least
LEAST_BYTES, MOST_BYTES = 1 << 20, 256 << 20  # of one copy
MOST_CALLS = 1 << 17
WARM_UP, LEAST_COPIES, MOST_COPIES = 2, 3, 20  # copies of one size

# For the sentences: calls of a training step of GPT-2's shape, and 64 images of 224 x 224.
STEP_CALLS = 1_000
BATCH_BYTES = 64 * 3 * 224 * 224 * 4
CHECKPOINT_BYTES = 1 << 30
TOO_LITTLE = f"the server has less than {bytes_text(2 * LEAST_BYTES)} of free memory"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    machine.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")


def run(options: argparse.Namespace) -> int:
    named = machine.named_url(options)
    url = machine.default_url() if named is None else named
    with machine.connect(url, options.token_file, options.quiet) as connected:
        import torch

        device, host = connected.devices[0], connected.status()["host"]
        try:
            with Waiting("measuring the round trip", options.quiet):
                times = sorted(machine.round_trips(device, 2.0, 200))
            with Waiting("measuring calls", options.quiet):
                calls = calls_per_second(device)
        except torch.OutOfMemoryError as error:
            raise CommandError(str(error)) from error
        with Waiting("measuring bandwidth", options.quiet):
            up, down = bandwidth(device) or (None, None)
    told = {
        "url": url,
        "host": host,
        "round_trip_seconds": machine.median(times),
        "round_trip_95_percent_seconds": times[int(len(times) * 0.95)],
        "calls_per_second": calls,
        "upload_bytes_per_second": up,
        "download_bytes_per_second": down,
    }
    told["meaning"] = meaning(told)
    print_json(told) if options.json else print(describe(told))
    return OK


def calls_per_second(device: torch.device) -> float:
    """Of a small operator, from the first call until the server has done the last."""
    import torch

    import torch_remote

    x, count = torch.zeros(8, device=device), 256
    while True:
        torch_remote.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            x.add_(1)
        torch_remote.synchronize()
        passed = time.perf_counter() - begin
        if passed >= ENOUGH or count >= MOST_CALLS:
            return count / passed
        count *= 4


def bandwidth(device: torch.device) -> tuple[float, float] | None:
    """Bytes per second up and down, of transfers that are long enough to tell.

    Both ends get memory for a copy and reuse it for the next ones, as a training program's are, so
    copies are repeated, and the best time counts. None if the server has too little memory left.
    """
    import torch

    import torch_remote
    from torch_remote import _memory

    free = _memory.mem_get_info(device)[0]
    most = min(MOST_BYTES, free // 2)  # other programs may need the rest
    size, rates = LEAST_BYTES, None
    while size <= most:
        here = torch.ones(size, dtype=torch.uint8)
        there = torch.empty(size, dtype=torch.uint8, device=device)
        try:
            up = best_time(partial(there.copy_, here), torch_remote.synchronize)
            down = best_time(partial(here.copy_, there), torch_remote.synchronize)
        except torch.OutOfMemoryError:  # another program has taken it since
            break
        rates = size / up, size / down
        if min(up, down) >= ENOUGH / 4:
            break
        size *= 4
    return rates


def best_time(copy: Callable[[], object], wait: Callable[[], object]) -> float:
    """Seconds of the fastest of several, which take some time together; the first ones warm up."""
    for _ in range(WARM_UP):
        copy()
        wait()
    best, end = math.inf, time.perf_counter() + ENOUGH
    for done in range(1, MOST_COPIES + 1):
        begin = time.perf_counter()
        copy()
        wait()
        now = time.perf_counter()
        best = min(best, now - begin)
        if now >= end and done >= LEAST_COPIES:
            break
    return best


def meaning(told: dict[str, Any]) -> list[str]:
    """What the figures mean for a training program, in sentences."""
    trip, calls = told["round_trip_seconds"], told["calls_per_second"]
    up, down = told["upload_bytes_per_second"], told["download_bytes_per_second"]
    step = STEP_CALLS / calls
    sentences = [
        f"A training step of {STEP_CALLS:,} calls takes at least {duration_text(step)} here, "
        "whatever the GPU; a step that computes longer hides this.",
        _about_reads(trip, step),
    ]
    if up is None:
        return [*sentences, f"The bandwidth is not measured: {TOO_LITTLE}."]
    return [
        *sentences,
        f"A batch of 64 images of 224 x 224 ({bytes_text(BATCH_BYTES)}) takes "
        f"{duration_text(BATCH_BYTES / up)} to upload; uploads from pinned memory overlap with "
        "computing.",
        f"A checkpoint of {bytes_text(CHECKPOINT_BYTES)} takes "
        f"{duration_text(CHECKPOINT_BYTES / down)} to save and "
        f"{duration_text(CHECKPOINT_BYTES / up)} to load.",
    ]


def _about_reads(trip: float, step: float) -> str:
    text = f"Each value that the program reads (item(), cpu(), print()) waits {duration_text(trip)}"
    if trip < step / 10:
        return f"{text}: reading the loss in every step costs little."
    every = max(2, round(10 * trip / max(step, 0.001)))
    return f"{text}: read the loss in every {every}th step, or with torch_remote.read()."


def describe(told: dict[str, Any]) -> str:
    rows = [
        ("round trip", duration_text(told["round_trip_seconds"]) + ", 95% within "
         + duration_text(told["round_trip_95_percent_seconds"])),
        ("calls", count_text(told["calls_per_second"]) + " per second"),
        *(
            (each, bytes_text(told[f"{each}_bytes_per_second"]) + "/s")
            for each in ("upload", "download")
            if told[f"{each}_bytes_per_second"] is not None
        ),
    ]  # fmt: skip
    lines = [f"{told['url']} on {told['host']}", *(f"  {name:<12}{text}" for name, text in rows)]
    return "\n".join([*lines, "", *(f"- {sentence}" for sentence in told["meaning"])])
