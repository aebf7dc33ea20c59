"""An amount of memory as text means the same wherever it is read."""

from __future__ import annotations

import pytest
from redirecting import TorchDevice

from torch_remote import choose_gpu
from torch_remote_patches.byte_count import parse_bytes

# The units are in tests/cpp/base/units_test.cpp too: those of `serve --max-memory`.
UNITS = {
    "3KiB": 3072,
    "500MiB": 500 << 20,
    "20GiB": 20 << 30,
    "1TiB": 1 << 40,
    "8KB": 8000,
    "8GB": 8 * 10**9,
}
WRITTEN_OTHERWISE = {
    "1000": 1000,
    "7B": 7,
    "1.5 KiB": 1536,
    ".5mib": 1 << 19,
    "2G": 2 * 10**9,
    "2Gi": 2 << 30,
    " 1gib ": 1 << 30,
}


@pytest.mark.parametrize(("text", "count"), [*UNITS.items(), *WRITTEN_OTHERWISE.items()])
def test_a_size_is_read_with_its_unit(text: str, count: int) -> None:
    assert parse_bytes(text) == count
    assert TorchDevice.memory_budget(text).limit == count


@pytest.mark.parametrize("text", [text for text in UNITS if text != "1TiB"])
def test_a_gpu_is_chosen_by_the_same_units(text: str) -> None:
    assert choose_gpu(text).memory_needed == UNITS[text]


def test_a_number_is_bytes() -> None:
    assert TorchDevice.memory_budget(2048).limit == parse_bytes(2048) == 2048


@pytest.mark.parametrize("text", ["", "much", "GiB", "5i", "5iB", "-1GiB", "1.2.3", "1GiB 2", "."])
def test_anything_else_is_a_value_error_that_says_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match="is no number of bytes; write it as 500MiB or 30GiB"):
        parse_bytes(text)
    with pytest.raises(ValueError, match="no number of bytes"):
        TorchDevice.memory_budget(text)
