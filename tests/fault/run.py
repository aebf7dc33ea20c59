"""`make faults`: training sessions are cut thousands of times and must end as uncut ones do.

python tests/fault/run.py --cuts 2000 --seed 1
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TORCH_REMOTE_LOG", "error")  # not a line for each resume
sys.path.insert(0, str(Path(__file__).parent.parent / "python"))

from helpers import serving
from plans import Plan, at_header_bytes, at_random_bytes
from proxy import FaultProxy
from training import STEPS, train

import torch_remote


def run_cut(server: str, plan: Plan, path: str | None) -> tuple[tuple[int, str], int]:
    with (
        FaultProxy(server, plan, path=path) as proxy,
        torch_remote.connect(proxy.url) as machine,
    ):
        return train(machine.devices[0]), proxy.fired


def main() -> int:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--cuts", type=int, default=2000)
    arguments.add_argument("--seed", type=int, default=1)
    chosen = arguments.parse_args()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, serving(f"unix://{folder}/s") as server:
        with torch_remote.connect(server) as machine:
            expected = train(machine.devices[0])
        assert expected[0] == 3 * STEPS
        print(f"uncut: counter {expected[0]}, digest {expected[1][:12]}", flush=True)
        done = number = 0
        while done < chosen.cuts:
            seed = chosen.seed + number
            headers = number % 3 == 0  # every third session: at the bytes of headers
            plan = (
                at_header_bytes(seed, 3) if headers else at_random_bytes(seed, chosen.cuts - done)
            )
            path = f"{folder}/p{number}" if number % 2 else None  # Unix and TCP in turn
            result, fired = run_cut(server, plan, path)
            where = "bytes of headers" if headers else "random bytes"
            print(f"session {number}: {fired} cuts at {where}, seed {seed}", flush=True)
            if result != expected:
                print(f"not as uncut: {result} instead of {expected}", file=sys.stderr)
                return 1
            done += fired if not headers else 0
            number += 1
    seconds = time.monotonic() - begin
    print(f"{done} cuts at random bytes and those of headers: all as uncut, in {seconds:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
