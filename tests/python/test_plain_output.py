"""What we print can be printed everywhere: also where the output is not UTF-8."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import DEADLINE, serving

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def printed_texts(path: Path) -> Iterator[ast.Constant]:
    """The strings of a file but its docstrings; those of commands are their help."""
    tree = ast.parse(path.read_text())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    if path.parent.name == "commands":
        docstrings -= {id(getattr(tree.body[0], "value", None))}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in docstrings:
            yield node


def test_texts_that_may_be_printed_are_ascii() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{each.lineno}: {each.value!r}"
        for path in (ROOT / "python").rglob("*.py")
        for each in printed_texts(path)
        if isinstance(each.value, str) and not each.value.isascii()
    ]
    assert found == []


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Its URLs, in a folder whose name is not ASCII."""
    folder = tmp_path_factory.mktemp("größe")
    metrics = f"unix://{folder}/m"
    with serving(f"unix://{folder}/s", "--metrics", metrics) as url:
        yield url, metrics


WAITS = """
import torch, torch_remote
x = torch.ones(2, device="remote")
x.sum().item()
print(torch_remote.waits())
print(torch_remote.Waits("train.py:1", 3, 1e-5))
"""


@pytest.mark.parametrize(
    "words",
    [
        ["-m", "torch_remote_cli", "doctor", "--on", "URL"],
        ["-m", "torch_remote_cli", "doctor", "--on", "unix:///nobody/größe"],
        ["-m", "torch_remote_cli", "bench", "URL"],
        ["-m", "torch_remote_cli", "status", "--on", "URL"],
        ["-m", "torch_remote_cli", "status", "--metrics", "METRICS"],
        ["-m", "torch_remote_cli", "top", "--metrics", "METRICS", "--count", "1"],
        ["-c", WAITS],
    ],
    ids=["doctor", "problem", "bench", "machine", "status", "top", "waits"],
)
def test_an_output_in_ascii_ends_no_command(words: list[str], server: tuple[str, str]) -> None:
    url, metrics = server
    words = [{"URL": url, "METRICS": metrics}.get(word, word) for word in words]
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, timeout=DEADLINE, check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "TORCH_REMOTE_PATIENCE": "0"},
    )  # fmt: skip
    assert done.stdout.isascii() and done.stdout
    assert b"UnicodeEncodeError" not in done.stderr and b"Traceback" not in done.stderr
    assert done.returncode == (1 if any("nobody" in word for word in words) else 0)
