"""`explain(op)` says where a call runs, why, and whether it waits. It needs no server."""

from __future__ import annotations

import pytest
import torch
from helpers import assert_runs

from torch_remote import explain


@pytest.mark.parametrize(
    ("op", "where", "waits"),
    [
        ("aten::mm", "on the server", "never"),
        ("add.Tensor", "on the server", "never"),
        (torch.ops.aten.relu.default, "on the server", "never"),
        ("view", "in this process", "never"),
        ("nonzero", "on the server", "always"),
        ("aten::empty.memory_format", "in this process", "never"),
    ],
)
def test_an_operator_is_explained(op: object, where: str, waits: str) -> None:
    first = explain(op)[0]  # type: ignore[arg-type]
    assert (first.where, first.waits) == (where, waits), first
    assert str(first).startswith(f"{first.operator} runs {where}: ")


@pytest.mark.parametrize("op", [torch.add, torch.ops.aten.add, "add", torch.Tensor.add])
def test_a_function_stands_for_all_its_overloads(op: object) -> None:
    explained = explain(op)  # type: ignore[arg-type]
    assert "aten::add.Tensor" in {each.operator for each in explained}
    assert len(str(explained).splitlines()) == len(explained) > 1


def test_an_operator_that_there_is_not_is_an_error() -> None:
    with pytest.raises(ValueError, match="no operator 'aten::no_such'"):
        explain("no_such")
    with pytest.raises(ValueError, match=r"no overload 'aten::add\.Nothing'"):
        explain("add.Nothing")


def test_no_server_is_started() -> None:
    code = """
        import torch_remote
        print(torch_remote.explain("mm"))
        print(torch_remote.machines())
    """
    lines = assert_runs(code).splitlines()
    assert lines[0].startswith("aten::mm runs on the server") and lines[-1] == "[]"
