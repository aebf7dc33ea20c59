"""docs/operators.md says what the built extension does, and what it says of waiting is true."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import torch_remote

ROOT = Path(__file__).parents[2]
FACTS = {name: facts for name, *facts in torch_remote._C.operator_facts()}
Counter = Callable[[Callable[[], object]], int]


def test_the_document_is_up_to_date() -> None:
    text = (ROOT / "docs" / "operators.md").read_text()
    version = torch.__version__.partition("+")[0]
    if f"torch {version}," not in text:
        pytest.skip(f"it was written for another torch than {version}")
    tool = runpy.run_path(str(ROOT / "tools" / "op_coverage.py"))
    assert tool["document"]() == text, "run tools/op_coverage.py"


CALLS: dict[str, tuple[Callable[[torch.Tensor], object], str]] = {
    "aten::transpose.int": (lambda x: x.transpose(0, 1), "view"),
    "aten::mm.out": (lambda x: x @ x, "meta"),
    "aten::relu": (lambda x: x.relu(), "shape"),
    "aten::add_.Tensor": (lambda x: x.add_(1), "meta"),
    "aten::nonzero": (lambda x: x.nonzero(), "server"),
    "aten::equal": (lambda x: torch.equal(x, x), "server"),
    "aten::_linalg_svd": (lambda x: torch.linalg.svd(x), "server"),
    "aten::_local_scalar_dense": (lambda x: x[0, 0].item(), "kernel"),
    "aten::linalg_matrix_exp": (lambda x: torch.linalg.matrix_exp(x), "python"),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_it_says_of_waiting_and_telling_is_what_happens(
    name: str, sync_count: Counter
) -> None:
    call, expected = CALLS[name]
    route, inference, waits = FACTS[name]
    assert expected in (route, inference.partition(",")[0])
    x = torch.randn(7, 7, device="remote")
    torch_remote.synchronize()
    first, second = sync_count(lambda: call(x)), sync_count(lambda: call(x))
    assert (first > 0, second > 0) == (waits in ("first", "always"), waits == "always")
