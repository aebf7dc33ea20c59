"""Transformers' own modelling tests, on the CPU and on `remote`: what passes on the CPU only?

    python tests/upstream/transformers_suite.py CHECKOUT [--family bert] [--device remote]

CHECKOUT is a clone of transformers' repository with the tag of the installed version: the tests are
in no package. They run in build/transformers/tree, CHECKOUT is only read. Results stay in
build/transformers as JUnit files; the comparison takes those of an earlier run for a device that
this one leaves out. Exits 1 if a test fails on `remote`, or passes on the CPU only, and
transformers_differences.py does not say why.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

import transformers
from reports import DEVICES, Results, compare, read, run_pytest
from transformers_differences import DIFFERENCES

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parent.parent / "build/transformers"
TREE = FOLDER / "tree"
FAMILIES = ["bert", "gpt2", "llama", "t5", "vit"]


def unpack(checkout: Path) -> None:
    """The tests of the installed version, beside a link to the package: some open its files."""
    tag = f"v{transformers.__version__}"
    parts = ["conftest.py", "pyproject.toml", "tests", "utils"]
    archive = subprocess.run(
        ["git", "-C", str(checkout), "archive", tag, *parts], stdout=subprocess.PIPE, check=False
    )
    if archive.returncode != 0:
        sys.exit(f"{checkout} must be a clone of transformers that has the tag {tag}.")
    shutil.rmtree(TREE, ignore_errors=True)
    (TREE / "src").mkdir(parents=True)
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
        files.extractall(TREE)
    (TREE / "src/transformers").symlink_to(Path(transformers.__file__).parent)
    shutil.copy(HERE / "remote_spec.py", TREE)


def run(device: str, family: str, workers: int, timeout: int) -> None:
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
        "TRANSFORMERS_TEST_DEVICE": device,
    }
    if device == "remote":
        environment["TRANSFORMERS_TEST_BACKEND"] = "torch_remote"
        environment["TRANSFORMERS_TEST_DEVICE_SPEC"] = "remote_spec.py"  # by its name, from TREE
    arguments = ["-n", str(workers), f"--timeout={timeout}"]
    arguments += [f"tests/models/{family}/test_modeling_{family}.py"]
    run_pytest(arguments, report(device, family), cwd=TREE, environment=environment)


def report(device: str, family: str) -> Path:
    return FOLDER / f"{device}-{family}.xml"


def results(device: str, family: str) -> Results:
    return read(report(device, family), lambda owner, test: f"{owner}.{test}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--family", nargs="+", choices=FAMILIES, default=FAMILIES)
    parser.add_argument("--device", nargs="*", choices=DEVICES, default=DEVICES)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--timeout", type=int, default=600, help="for each test, in seconds")
    options = parser.parse_args()
    unpack(options.checkout)
    unexplained = 0
    for family in options.family:
        for device in options.device:
            run(device, family, options.workers, options.timeout)
        cpu, remote = (results(device, family) for device in DEVICES)
        unexplained += compare(family, cpu, remote, DIFFERENCES)
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
