"""The rows of redirect.py in instructions, which no other load on the machine changes.

    python benchmarks/python/redirect_instructions.py

Needs valgrind (Debian: valgrind), which runs this program again and counts. Only the thread that
calls is counted. The kernel's work is not, nor that of caches: times are measured by `make bench`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

CALLS = 1000
INSIDE = "TORCH_REMOTE_INSIDE_VALGRIND"


def control(option: str) -> None:
    """Tells the valgrind that runs this process."""
    subprocess.run(
        ["callgrind_control", option, str(os.getpid())], check=True, stdout=subprocess.DEVNULL
    )


def run_rows() -> None:
    """Inside valgrind: writes one file of counts for each side of each row, and for no calls."""
    from redirect import rows

    import torch_remote
    import TorchDevice

    for _, _, policy, hooked, stock in rows():
        for call in (None, hooked, stock):
            if call is hooked:
                TorchDevice.enable(policy)
            for _ in range(CALLS // 10 if call else 0):
                call()  # type: ignore[misc]
            torch_remote.synchronize()
            control("--instr=on")
            control("--zero")
            for _ in range(CALLS if call else 0):
                call()  # type: ignore[misc]
            control("--dump")
            control("--instr=off")
            if call is hooked:
                TorchDevice.disable()


def count_in(file: Path) -> int:
    lines = file.read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("totals:"))


def main() -> int:
    if os.environ.get(INSIDE):
        run_rows()
        return 0
    from redirect import rows

    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder) / "counts"
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--separate-threads=yes"]
        command += [f"--callgrind-out-file={counts}", sys.executable, __file__]
        subprocess.run(command, env={**os.environ, INSIDE: "1"}, check=True, capture_output=True)
        # The first thread's files are numbered in the order in which they were written.
        numbers = iter(range(1, 1 + 3 * len(rows())))
        missed = 0
        for name, bar, *_ in rows():
            nothing, hooked, stock = (count_in(Path(f"{counts}.{next(numbers)}-01")) for _ in "123")
            ratio = (hooked - nothing) / (stock - nothing)
            missed += ratio > bar
            each = f"{(hooked - nothing) / CALLS:.0f} against {(stock - nothing) / CALLS:.0f}"
            print(f"{name:<46} {ratio:.3f} x  (bar {bar})  {each} instructions")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
