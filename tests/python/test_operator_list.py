"""src/server/operators/operator_list.txt classifies what clients send, of every torch we support.

The C++ tests of `Operators` check what the server makes of it.
"""

from __future__ import annotations

import gzip
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
