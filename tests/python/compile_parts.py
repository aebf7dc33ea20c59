"""What the tests of torch.compile share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from helpers import DEVICE, same


@pytest.fixture(autouse=True)
def forget_what_was_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture(name="no_line")
def every_graph_is_a_program(capsys: pytest.CaptureFixture[str]) -> Iterator[None]:
    """No line says that a graph is no program."""
    yield
    assert "torch.compile" not in capsys.readouterr().err


def compiled(function: Callable[..., Any], device: str, **options: Any) -> Callable[..., Any]:
    """On the CPU the same graphs, run call by call."""
    if device == "cpu":
        options["backend"] = "aot_eager"
        options.pop("mode", None)
        options.pop("options", None)
    return torch.compile(function, **options)


def same_on_both(run: Callable[[str], Any]) -> None:
    torch.manual_seed(0)
    expected = run("cpu")
    torch._dynamo.reset()
    torch.manual_seed(0)
    found = run(DEVICE)
    assert len(expected) == len(found)
    for one, other in zip(expected, found, strict=True):
        assert same(other.cpu(), one)
