"""The page that compares `torch.remote` with `torch.cuda` has every name, and tells the truth."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
import torch

import torch_remote  # noqa: F401  names the backend

PAGE = Path(__file__).parents[2] / "docs" / "like_cuda.md"


def names_of_cuda() -> set[str]:
    names = set(torch.cuda.__all__)
    return {name for name in names if not name.endswith(("Tensor", "Storage"))}


def rows() -> list[tuple[set[str], str]]:
    """The names of each row, and what we have for them."""
    cells = [line.split("|")[1:-1] for line in PAGE.read_text().splitlines() if line[:3] == "| `"]
    return [(set(re.findall(r"`(\w+)`", names)), ours.strip()) for names, ours, _ in cells]


def test_every_name_of_torch_cuda_is_in_the_table() -> None:
    listed = set().union(*(names for names, _ in rows()))
    assert names_of_cuda() - listed == set()


def test_what_the_table_calls_the_same_exists_and_the_rest_does_not() -> None:
    for names, ours in rows():
        for name in names:
            assert hasattr(torch.remote, name) == (ours == "the same"), name


@pytest.mark.parametrize("name", ["amp", "memory", "random", "streams"])
def test_a_module_of_torch_remote_is_imported_by_its_name(name: str) -> None:
    assert importlib.import_module(f"torch.remote.{name}") is getattr(torch.remote, name)
