"""src/server/operators/operator_list.txt classifies what clients send, of every torch we support.

The C++ tests of `Operators` check what the server makes of it.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

import torch_remote

ROOT = Path(__file__).parents[2]
LIST = ROOT / "src" / "server" / "operators" / "operator_list.txt"
ADVICE = f"read the kernels of each, then add it to a section of {LIST.relative_to(ROOT)}"

# Operators whose schemas differ between the recorded versions: the list's class holds for both.
READ_IN_EACH_VERSION = {
    "_flash_attention_forward",
    "_scaled_dot_product_attention_math_for_mps",
}

# Calls after which a kernel reads or writes outside its tensors: sums and products of sizes that
# overflow, and shapes that only its caller inside PyTorch makes fit.
OUTSIDE = {
    "_masked_softmax_backward": (
        "_masked_softmax_backward(rand(2, 4), rand(0, 4), ones(2, 4).bool(), 1)"
    ),
    "_pdist_forward": "_pdist_forward(rand(5, 5, 0))",
    "_spdiags": "_spdiags(rand(2, 4), tensor([0, 7]), [9, 3])",
    "convolution": (
        "convolution(rand(1, 2, 6, 6).double(), rand(2, 2, 3, 3).double(), None, "
        "[1, 1], [2**61, 0], [1, 1], False, [0, 0], 1)"
    ),
    "convolution_backward": (
        "convolution_backward(rand(1, 3, 6), rand(1, 3, 4), rand(3, 3, 3), "
        "[3], [2], [2], [1], True, [2**60 + 1], 1, [True] * 3)"
    ),
    "im2col": "im2col(rand(1, 2, 6, 6), [3, 3], [1, 1], [0, 2**61 + 1], [1, 1])",
    "lu_unpack": "lu_unpack(rand(4, 5), zeros(0).int())",
    "native_group_norm": "native_group_norm(rand(8), None, None, 8, 1, 2**61 + 1, 1, 1e-5)",
    "repeat_interleave.Tensor": "repeat_interleave(tensor([2**62] * 4 + [5]), output_size=5)",
}
# Makes each call in a process that may die, and prints the names of those that did.
CALLS = """
import json, os, resource, sys
from torch import ones, ops, rand, set_num_threads, tensor, zeros
set_num_threads(1)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
died = []
for name, call in json.loads(sys.argv[1]).items():
    child = os.fork()
    if child == 0:
        try:
            eval("ops.aten." + call)
        except (NameError, TypeError):  # it is no call of this operator
            os._exit(1)
        finally:
            os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status == 0 or os.WIFSIGNALED(status), name
    if os.WIFSIGNALED(status):
        died.append(name)
print(json.dumps(died))
"""


def sections() -> dict[str, list[str]]:
    """The heading of each section, and its lines."""
    read: dict[str, list[str]] = {}
    heading = ""
    for line in LIST.read_text().splitlines():
        if line.startswith("== "):
            heading = line.removeprefix("== ")
            read[heading] = []
        elif line and not line.startswith("#"):
            read[heading].append(line)
    return read


def operators_of(lines: list[str]) -> list[str]:
    """abs - out → abs, abs.out"""
    split = [line.split() for line in lines]
    return [
        name if each == "-" else f"{name}.{each}" for name, *each_of in split for each in each_of
    ]


def listed() -> Counter[str]:
    return Counter(name for lines in sections().values() for name in operators_of(lines))


def recorded() -> dict[str, dict[str, str]]:
    """By version of torch: the schema of each operator of `aten`."""
    versions = {}
    for path in sorted((ROOT / "tests" / "golden").glob("schemas-*.txt.gz")):
        lines = gzip.decompress(path.read_bytes()).decode().splitlines()[1:]
        schemas = {line.partition("(")[0].removeprefix("aten::"): line for line in lines}
        versions[path.name.removeprefix("schemas-").removesuffix(".txt.gz")] = schemas
    return versions


def installed() -> set[str]:
    """The operators of the installed torch."""
    names = torch._C._dispatch_get_all_op_names()
    return {name.removeprefix("aten::") for name in names if name.startswith("aten::")}


def sent() -> set[str]:
    """Those that a client of the installed torch sends; it composes the others, or does them."""
    facts = torch_remote._C.operator_facts()
    return {name.removeprefix("aten::") for name, route, *_ in facts if route == "sent"}


# Promise 4.
def test_every_operator_that_a_client_sends_is_classified() -> None:
    unlisted = sent() - set(listed())
    assert not unlisted, f"{sorted(unlisted)}: {ADVICE}"


# Promise 4.
@pytest.mark.parametrize("version", recorded())
def test_every_operator_of_a_recorded_torch_is_classified(version: str) -> None:
    composed = installed() - sent()
    unlisted = set(recorded()[version]) - set(listed()) - composed
    assert not unlisted, f"torch {version}: {sorted(unlisted)}: {ADVICE}"


def test_each_operator_is_listed_once_and_exists() -> None:
    assert [name for name, count in listed().items() if count > 1] == []
    known = {name for schemas in recorded().values() for name in schemas}
    assert sorted(set(listed()) - known) == [], "no recorded torch has these"


def test_lines_are_sorted_so_that_changes_are_small() -> None:
    for heading, lines in sections().items():
        assert lines == sorted(lines, key=lambda line: line.split()[0]), heading
        for line in lines:
            assert line.split()[1:] == sorted(line.split()[1:]), line


def test_an_operator_whose_schema_changes_is_read_again() -> None:
    versions = list(recorded().values())
    common = set.intersection(*(set(schemas) for schemas in versions))
    changed = {name for name in common if len({schemas[name] for schemas in versions}) > 1}
    assert changed == READ_IN_EACH_VERSION, "read the kernels of those that are new here"


def test_a_refusal_names_a_reason() -> None:
    for heading in sections():
        assert heading in ("runs", "trusts") or heading.startswith("refused: "), heading


# Promise 4.
def test_a_kernel_that_goes_outside_its_tensors_is_said_to_trust_its_arguments() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", CALLS, json.dumps(OUTSIDE)], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    died = set(json.loads(ran.stdout))
    assert died, "no call has died: they show nothing"
    checked = set(operators_of(sections()["runs"]))
    assert died & checked == set(), "move it to the section `trusts`"
