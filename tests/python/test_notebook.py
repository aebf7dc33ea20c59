"""Notebooks: the example runs, and machines, devices and tensors are shown for people."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import socket
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
import torch
from helpers import assert_runs, run_python

import torch_remote
from torch_remote import _C

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "notebook.ipynb"


def cells() -> list[str]:
    return [
        "".join(cell["source"])
        for cell in json.loads(NOTEBOOK.read_text())["cells"]
        if cell["cell_type"] == "code"
    ]


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Runs a cell as a notebook does: `await` is allowed, and the last expression is its value."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    parts: list[CodeType] = [
        compile(tree, "cell", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT),
    ]
    if isinstance(last, ast.Expr):
        expression = ast.Expression(last.value)
        parts.append(compile(expression, "cell", "eval", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
    value = None
    for part in parts:
        value = eval(part, names)
        if inspect.iscoroutine(value):
            value = asyncio.run(value)
    return value


PROGRAM = """
import sys
sys.path.insert(0, {folder!r})
import test_notebook
names = {{}}
for source in test_notebook.cells():
    value = test_notebook.run_cell(source, names)
    show = getattr(value, "_repr_html_", None)
    print(show() if show else "" if value is None else repr(value))
"""


def test_the_example_runs_cell_by_cell() -> None:
    output = assert_runs(PROGRAM.format(folder=str(Path(__file__).parent)))
    assert "device='remote:0'" in output and "<table>" in output
    assert " calls sent, 0 waits" in output and "All keys matched" in output
    assert "state='stopped'" in output


def test_the_example_runs_in_a_real_notebook() -> None:
    for package in ("nbclient", "nbformat", "ipykernel"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    import nbclient
    import nbformat

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    texts = json.dumps([cell.get("outputs") for cell in notebook.cells])
    assert "text/html" in texts and "remote:0" in texts and "0 waits" in texts


# --- what people see


def test_a_machine_is_shown_as_a_table() -> None:
    with torch_remote.connect("local") as machine:
        machine.devices  # noqa: B018  waits for the handshake
        properties = torch.remote.get_device_properties(machine.devices[0])
        with torch_remote.count() as counted:
            html = machine._repr_html_()
        assert counted.syncs == 0
        for text in (str(machine.devices[0]), properties.kind, properties.host, ", open"):
            assert text in html
        assert f"{properties.total_memory / 2**30:.1f} GiB" in html
    stopped = machine._repr_html_()
    assert ", stopped" in stopped and "GiB" in stopped
    assert "state='stopped'" in repr(machine)


def test_a_machine_that_has_not_answered_is_shown_without_waiting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:  # takes connections, says nothing
        done = run_python(
            """
            import torch, torch_remote
            torch.remote.init()  # the default machine: does not wait
            (machine,) = torch_remote.machines()
            print(machine._repr_html_(), machine)
            machine.stop()
            """,
            TORCH_REMOTE=f"tcp://127.0.0.1:{listener.getsockname()[1]}",
            TORCH_REMOTE_TOKEN="x",
        )
    html, _, text = done.stdout.partition("</table>")
    assert "remote:0" in html and "connecting" in html and "connecting" in text, done.stderr


def test_what_a_server_says_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    evil = "<script>alert('&')</script>"
    known = {"name": evil, "kind": evil, "host": evil, "total_memory": 2**30}
    monkeypatch.setattr(_C, "machine_summary", lambda _: (evil, [0], evil))
    monkeypatch.setattr(_C, "machine_properties", lambda _: [known])
    html = torch_remote.Machine(0)._repr_html_()
    assert "<script>" not in html and html.count("&lt;script&gt;") == 5


def test_tensors_and_devices_print_as_on_any_device() -> None:
    x = torch.arange(3.0, device="remote")
    assert repr(x) == "tensor([0., 1., 2.], device='remote:0')"
    assert repr(x.device) == "device(type='remote', index=0)" and str(x.device) == "remote:0"
    assert repr(x.requires_grad_() * 2) == (
        "tensor([0., 2., 4.], device='remote:0', grad_fn=<MulBackward0>)"
    )
    assert "kind=" in repr(torch.remote.get_device_properties())
    assert f"{x.sum().item():.1f} {x[1]:.2f}" == "3.0 1.00"
