"""PyTorch's own device-generic tests, on the CPU and on `remote`: what passes on the CPU only?

    python tests/upstream/pytorch_suite.py CHECKOUT [--file indexing] [--shard 1/8]

CHECKOUT is PyTorch's source tree at the installed version: no package has the tests. They run in
build/pytorch/tree, CHECKOUT is only read. On `remote` every call is waited for, so that an error is
raised where the test expects it. Results stay in build/pytorch as JUnit files; the comparison takes
those of an earlier run for a device that this one leaves out. Exits 1 if a test fails on `remote`,
or passes on the CPU only, and pytorch_differences.py does not say why.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from pathlib import Path

from pytorch_differences import DIFFERENCES
from pytorch_plugin import common_name
from reports import DEVICES, compare, read, run_pytest

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parent.parent / "build/pytorch"
TREE = FOLDER / "tree"
# In the order of what they found for the time they take; from test_reductions on they take hours.
FILES = [
    *["sort_and_select", "indexing", "view_ops", "shape_ops", "torch", "scatter_gather_ops"],
    *["complex", "autograd", "serialization", "tensor_creation_ops", "type_promotion"],
    *["transformers", "spectral_ops", "optim", "reductions", "linalg", "nn", "sparse"],
    *["unary_ufuncs", "foreach"],
]
# The tests open their own files, and PyTorch's list of operators.
PARTS = ["test", "tools", "pytest.ini", "pyproject.toml", "aten/src/ATen/native"]
LISTS = ["native_functions.yaml", "tags.yaml"]


def unpack(checkout: Path) -> None:
    if not (checkout / "test/test_torch.py").exists():
        sys.exit(f"{checkout} must be PyTorch's source tree: it has no test/test_torch.py.")
    shutil.rmtree(TREE, ignore_errors=True)
    TREE.mkdir(parents=True)
    for part in PARTS:
        source, copy = checkout / part, TREE / part
        if source.is_file():
            shutil.copy(source, copy)
        elif part == PARTS[-1]:
            copy.mkdir(parents=True)
            for name in LISTS:
                shutil.copy(source / name, copy)
        else:
            shutil.copytree(source, copy, symlinks=True)


def run(device: str, file: str, options: argparse.Namespace) -> None:
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(HERE),
        "PYTORCH_TESTING_DEVICE_ONLY_FOR": "cpu" if device == "cpu" else "privateuse1",
        "TORCH_REMOTE_BLOCKING": "1",
        "UPSTREAM_DEVICE": device,
        "UPSTREAM_SHARD": options.shard,
    }
    arguments = ["-p", "pytorch_plugin", "-n", str(options.workers), f"--timeout={options.timeout}"]
    run_pytest(
        [*arguments, f"test_{file}.py"],
        report(device, file),
        cwd=TREE / "test",
        environment=environment,
    )


def report(device: str, file: str) -> Path:
    return FOLDER / f"{device}-{file}.xml"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--file", nargs="+", choices=FILES, default=FILES)
    parser.add_argument("--shard", default="1/1", help="a part of each file: 1/8")
    parser.add_argument("--device", nargs="*", choices=DEVICES, default=DEVICES)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--timeout", type=int, default=600, help="for each test, in seconds")
    options = parser.parse_args()
    unpack(options.checkout)
    unexplained = 0
    for file in options.file:
        start = time.monotonic()
        for device in options.device:
            run(device, file, options)
        if all(report(device, file).exists() for device in DEVICES):
            cpu, remote = (read(report(device, file), common_name) for device in DEVICES)
            unexplained += compare(file, cpu, remote, DIFFERENCES)
            if len(remote) < len(cpu) / 2:  # a file that could not be imported, for example
                print(f"  NOT EXPLAINED: {len(cpu)} tests on cpu, {len(remote)} on remote")
                unexplained += 1
        print(f"{file}: {time.monotonic() - start:.0f} s", flush=True)
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
