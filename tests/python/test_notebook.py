"""Notebooks: the example runs, and machines, devices and tensors are shown for people."""

from __future__ import annotations

import ast
import asyncio
import inspect
import itertools
import json
import socket
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import assert_runs, run_python

import torch_remote
from torch_remote import _C, _notebook
from torch_remote._waits import waits_since

pytestmark = pytest.mark.slow

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


# --- errors name the cell


class Kernel:
    """What ipykernel's shell has: a compiler that names files by the text of a cell, and events."""

    def __init__(self) -> None:
        self.compile, self.events = self, self
        self._filename_map: dict[str, int] = {}
        self.execution_count = 1
        self._callbacks: list[Callable[[Any], None]] = []
        self.names: dict[str, Any] = {}

    def get_code_name(self, raw: str, transformed: str, number: int) -> str:
        return f"/tmp/ipykernel_7/{zlib.crc32(raw.encode())}.py"

    def register(self, event: str, callback: Callable[[Any], None]) -> None:
        assert event == "pre_run_cell"
        self._callbacks.append(callback)

    def run(self, source: str) -> None:
        for callback in self._callbacks:
            callback(SimpleNamespace(raw_cell=source))
        file = self.get_code_name(source, source, self.execution_count)
        self._filename_map[file] = self.execution_count
        try:
            exec(compile(source, file, "exec"), self.names)
        finally:
            self.execution_count += 1


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    made = Kernel()
    made.run("import torch\ndef fail(x):\n    return torch.gather(x, 0, far)")  # before the import
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: made))
    _notebook.watch_cells()
    made.run("far = torch.tensor([10**6], device='remote')\nx = torch.ones(3, device='remote')")
    return made


def test_an_error_names_the_cell_and_its_line(kernel: Kernel) -> None:
    sizes = itertools.count(3079)  # not used elsewhere: a signature that failed is waited for
    for cell, source, line in (
        (3, "\ny = torch.gather(x, 0, far)", "cell 3, line 2 in <module>"),
        (4, "y = fail(x)", "cell 1, line 3 in fail"),
        (5, "y = torch.gather(x, 0, far)", "cell 5, line 1 in <module>"),
        (6, "z = torch.gather(x, 0, far); y = z", "cell 6, line 1 in <module>"),
        (7, "\ny = torch.gather(x, 0, far)", "cell 7, line 2 in <module>"),  # cell 3, run again
    ):
        assert kernel.execution_count == cell
        kernel.names["x"] = torch.ones(next(sizes), device="remote")
        with pytest.raises(torch_remote.RemoteError) as raised:
            kernel.run(source)
            kernel.names["y"].tolist()
        assert f", called at {line}" in str(raised.value)
        assert "ipykernel" not in str(raised.value)


def test_a_wait_names_the_cell(kernel: Kernel) -> None:
    before = torch_remote.waits_by_line()
    kernel.run("x.sum().item()")
    assert [each.line for each in waits_since(before)] == ["cell 3, line 1"]


def test_ipython_at_a_terminal_has_the_cell_in_the_name() -> None:
    before = torch_remote.waits_by_line()
    source = "import torch\ntorch.ones(2, device='remote').sum().item()"
    exec(compile(source, "<ipython-input-12-0123456789ab>", "exec"), {})
    assert [each.line for each in waits_since(before)] == ["cell 12, line 2"]


def test_an_error_in_a_real_notebook_names_the_cell() -> None:
    for package in ("nbclient", "nbformat", "ipykernel"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    import nbclient
    import nbformat

    sources = (
        "import torch, torch_remote",
        "x = torch.ones(4, device='remote')",
        "y = torch.gather(x, 0, torch.tensor([10**6], device='remote'))",
        "try: y.tolist()\nexcept torch_remote.RemoteError as error: print(error)",
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in sources])
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    assert "called at cell 3, line 1 in <module>" in json.dumps(notebook.cells[-1]["outputs"])


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
