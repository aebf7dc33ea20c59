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
import collections
import os
import re
import shutil
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path
from xml.etree import ElementTree

import transformers
from transformers_differences import DIFFERENCES

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parent.parent / "build/transformers"
TREE = FOLDER / "tree"
FAMILIES = ["bert", "gpt2", "llama", "t5", "vit"]
DEVICES = ["cpu", "remote"]
OUTCOMES = {"skipped": "skipped", "failure": "failed", "error": "failed"}

Results = dict[str, tuple[str, str]]  # test -> outcome, first line of the reason


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
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(workers)]
    command += [f"--timeout={timeout}", f"--junitxml={report(device, family)}"]
    command += [f"tests/models/{family}/test_modeling_{family}.py"]
    report(device, family).unlink(missing_ok=True)
    with (FOLDER / f"{device}-{family}.log").open("w") as log:
        subprocess.run(command, cwd=TREE, env=environment, stdout=log, stderr=log, check=False)
    if not report(device, family).exists():
        sys.exit(f"The tests of {family} on {device} did not end: see {log.name}")


def report(device: str, family: str) -> Path:
    return FOLDER / f"{device}-{family}.xml"


def read(device: str, family: str) -> Results:
    results = {}
    for case in ElementTree.parse(report(device, family)).iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}"
        kinds = [child for child in case if child.tag in OUTCOMES]
        # A test whose tear-down fails too has two entries.
        outcome = OUTCOMES[kinds[0].tag] if kinds else "passed"
        reason = kinds[0].get("message", "") if kinds else ""
        if results.get(name, ("",))[0] != "failed":
            results[name] = (outcome, reason.partition("\n")[0])
    return results


def reason_for(family: str, test: str) -> str | None:
    for difference in DIFFERENCES:
        if re.search(difference.tests, f"{family} {test}"):
            return difference.reason
    return None


def compare(family: str) -> int:
    """Prints the counts of a family and what differs; the number of tests without a reason."""
    cpu, remote = (read(device, family) for device in DEVICES)
    for device, results in zip(DEVICES, (cpu, remote), strict=True):
        counts = collections.Counter(outcome for outcome, _ in results.values())
        print(f"{family:6} {device:6} " + ", ".join(f"{counts[o]} {o}" for o in sorted(counts)))
    unexplained = 0
    for test in sorted(cpu.keys() | remote.keys()):
        before, _ = cpu.get(test, ("missing", ""))
        after, message = remote.get(test, ("missing", ""))
        if after == before or (after != "failed" and before != "passed"):
            continue
        reason = reason_for(family, test)
        unexplained += reason is None
        print(f"  {before} → {after}: {test}: {reason or 'NOT EXPLAINED: ' + message[:200]}")
    return unexplained


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
        unexplained += compare(family)
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
