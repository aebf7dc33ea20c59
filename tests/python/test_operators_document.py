"""docs/operators.md says what the extension does, and what it says about waiting is true."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from helpers import run_python

import torch_remote

ROOT = Path(__file__).parents[2]
FACTS = {name: facts for name, *facts in torch_remote._C.operator_facts()}
Counter = Callable[[Callable[[], object]], int]


def test_the_document_is_up_to_date() -> None:
    text = (ROOT / "docs" / "operators.md").read_text()
    version = torch.__version__.partition("+")[0]
    assert len(text.splitlines()) < 200
    if f"torch {version}:" not in text:
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
    route, inference, waits, _ = FACTS[name]
    assert expected in (route, inference.partition(",")[0])
    x = torch.randn(7, 7, device="remote")
    torch_remote.synchronize()
    first, second = sync_count(lambda: call(x)), sync_count(lambda: call(x))
    assert (first > 0, second > 0) == (waits in ("first", "always"), waits == "always")


# A call for each way, with the way that an ordinary call takes.
WAYS = {
    "aten::relu": ("x.relu()", "shape"),
    "aten::copy_": ("y.copy_(x.t())", "shape"),
    "aten::masked_fill_.Scalar": ("y.masked_fill_(x > 0, 1.0)", "shape"),
    "aten::arange.start_out": ("torch.arange(5, device='remote')", "shape"),
    "aten::zero_": ("y.zero_()", "arguments"),
    "aten::_foreach_add_.Scalar": ("torch._foreach_add_([x, y], 1.0)", "arguments"),
    "aten::mm": ("x @ y", "meta"),
    "aten::add_.Tensor": ("x.add_(1)", "meta"),
    "aten::fill_.Tensor": ("x.fill_(y[0, 0])", "python"),
    "aten::linalg_matrix_exp": ("torch.linalg.matrix_exp(x)", "python"),
    "aten::nonzero": ("x.nonzero()", "server"),
    "aten::_linalg_svd": ("torch.linalg.svd(x)", "server"),
    "aten::_cummax_helper": (
        "torch.ops.aten._cummax_helper(x, torch.empty_like(x), torch.empty_like(x).long(), 0)",
        "server",
    ),
}


@pytest.fixture(scope="module")
def ways_taken() -> dict[str, str]:
    """Who told the outputs of each operator's first call, from the log."""
    lines = ["import torch, torch_remote", "x, y = torch.ones(2, 4, 4, device='remote')"]
    code = "\n".join(lines + [call for call, _ in WAYS.values()])
    done = run_python(code, TORCH_REMOTE_LOG="debug")
    assert done.returncode == 0, done.stderr
    told = re.findall(r"new signature operator=(\S+) told_by=(\w+)", done.stderr)
    return dict(reversed(told))


@pytest.mark.parametrize("name", WAYS)
def test_the_way_it_says_is_the_way_that_a_call_takes(
    name: str, ways_taken: dict[str, str]
) -> None:
    _, way = WAYS[name]
    assert ways_taken[name] == way
    route, inference, *_ = FACTS[name]
    assert inference.split(", ")[0] == way or route == "kernel"


def test_a_reason_is_given_for_what_does_not_go_the_usual_way() -> None:
    assert "a kernel of CUDA alone" in FACTS["aten::_cudnn_rnn"][3]
    assert len(FACTS["aten::linalg_eig"][3].splitlines()) == 2
    for route, *_, reason in FACTS.values():
        assert reason or route not in ("kernel", "branch", "refused")
