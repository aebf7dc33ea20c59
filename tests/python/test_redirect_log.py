"""What the redirect logs and reports: once for each line of the user's program."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import assert_runs, run_python
from redirecting import TorchDevice


def test_the_log_says_once_where_and_what() -> None:
    code = """
import TorchDevice, torch
def make(n):
    return torch.zeros(n, device="cuda")
for n in range(3):
    make(n)
torch.nn.Linear(1, 1, device="cuda")
TorchDevice.report()
"""
    done = run_python(code, TORCHDEVICE_LOG_LEVEL="INFO")
    assert done.returncode == 0
    lines = done.stderr.splitlines()
    assert sum("make(): torch.zeros: cuda -> cpu" in line for line in lines) == 1
    assert lines[0].startswith("TorchDevice: <string>:4 make(): ")
    assert any("<string>:7 <module>(): torch.empty: cuda -> cpu" in line for line in lines)
    assert any(
        line.split() == ["<string>:4", "torch.zeros", "cuda", "cpu", "3"]
        for line in done.stdout.splitlines()
    )


def test_the_log_tells_where_a_generator_of_the_cpu_draws() -> None:
    code = """
    import torch, torch_remote, TorchDevice
    g, x = torch.Generator("cpu"), torch.frombuffer(bytearray(8), dtype=torch.float32).remote()
    torch.randn(2, generator=g, device="cpu")  # as asked: no line
    torch.randn(2, generator=g, device="cuda")
    x.normal_(generator=g)
    """
    done = run_python(code, TORCHDEVICE_LOG_LEVEL="INFO")
    assert [line.partition("(): ")[2] for line in done.stderr.splitlines()] == [
        "torch.randn: cuda -> cpu (its generator is of that device)",
        "Tensor.normal_: remote -> cpu "
        "(its generator is of the CPU: the numbers are drawn there and copied)",
    ]


def test_debug_logs_every_call_and_warning_none_but_overrides() -> None:
    code = """
import TorchDevice, torch
for n in range(3):
    torch.zeros(n, device="cuda")
with TorchDevice.cpu_override():
    torch.zeros(1, device="cuda")
"""
    debug = run_python(code, TORCHDEVICE_LOG_LEVEL="DEBUG").stderr
    assert debug.count("torch.zeros: cuda -> cpu") == 4
    warning = run_python(code, TORCHDEVICE_LOG_LEVEL="warning").stderr
    assert warning.count("torch.zeros: cuda -> cpu (the CPU override is on)") == 1
    assert len(warning.splitlines()) == 1


@contextmanager
def debug_handler(emit: Callable[[logging.LogRecord], None]) -> Iterator[None]:
    handler = logging.Handler()
    handler.emit = emit  # type: ignore[method-assign]
    logger = logging.getLogger("TorchDevice")
    others, logger.handlers = logger.handlers, [handler]
    logger.setLevel("DEBUG")
    try:
        yield
    finally:
        logger.handlers = others
        logger.setLevel("ERROR")


def test_a_handler_of_the_log_may_call_torch(remote: str) -> None:
    records: list[logging.LogRecord] = []

    def emit(record: logging.LogRecord) -> None:
        records.append(record)
        assert str(torch.zeros(2, device="cuda").device) == remote

    with debug_handler(emit):
        for _ in range(2):
            torch.ones(3, device="cuda")
    assert len(records) == 2


def test_calls_of_the_logs_handlers_do_not_change_the_answer(remote: str) -> None:
    # Enough lines to fill the table of recent calls.
    source = "def fill():\n" + "    torch.device('mps')\n" * 1500
    scope: dict[str, Any] = {"torch": torch, "__name__": "mine"}
    exec(source, scope)

    def ask() -> str:
        return str(torch.device("cuda"))

    def emit(record: logging.LogRecord) -> None:
        with TorchDevice.cpu_override():
            scope["fill"]()

    ask()
    with debug_handler(emit):
        assert [ask() for _ in range(3)] == [remote] * 3


def test_a_type_made_at_run_time_does_not_name_a_site(used: str) -> None:
    for number in range(3):
        made = type(f"Stream{number}", (torch.Stream,), {})
        made(device="cuda")
    assert {each.api for each in TorchDevice.sites() if "Stream" in each.api} == {"torch.Stream"}


def test_the_report_is_json_for_tools(remote: str) -> None:
    import json

    torch.zeros(3, device="cuda")
    rows = json.loads(TorchDevice.sites().json())
    mine = [row for row in rows if row["file"] == __file__ and row["api"] == "torch.zeros"]
    assert mine[-1]["asked"] in ("cuda", "cuda:7", "no device", "mps", "mps:0", "cpu")
    assert {"line", "function", "used", "reason", "count"} <= mine[0].keys()


@pytest.mark.parametrize("first", ["logging", "TorchDevice"])
def test_a_users_logging_setup_applies(first: str) -> None:
    setup = 'import logging, sys; logging.basicConfig(stream=sys.stdout, format="mine %(message)s")'
    lines = [setup, "import TorchDevice, torch"]
    code = lines if first == "logging" else lines[::-1]
    use = """
torch.zeros(1, device="cuda")
logging.getLogger("TorchDevice").setLevel("DEBUG")
for _ in range(2): torch.ones(1, device="cuda")
logging.getLogger("TorchDevice").setLevel("ERROR")
torch.ones(2, device="cuda")
"""
    printed = assert_runs("\n".join(code) + use, TORCHDEVICE_LOG_LEVEL="INFO").splitlines()
    assert printed[0].startswith("mine <string>:3 <module>(): torch.zeros: cuda -> cpu")
    assert [line.split()[3] for line in printed] == ["torch.zeros:", "torch.ones:", "torch.ones:"]


def test_a_site_is_the_users_line_also_where_torch_remote_replaces_a_function(remote: str) -> None:
    model = torch.nn.Linear(2, 2)
    model.to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 2, device="cuda")).sum().backward()
    optimizer.step()
    with torch.random.fork_rng(device_type="cuda"):
        pass
    assert any(each[:1] == (__file__,) and each.api == "Module.to" for each in TorchDevice.sites())
    ours = str(Path(TorchDevice.__file__).parent.parent)
    assert not [each for each in TorchDevice.sites() if each.file.startswith(ours)]
    assert not [each for each in TorchDevice.sites() if "contextlib" in each.file]


CELLS = """
import sys, types
FILE = "/tmp/ipykernel_7/123.py"
shell = types.SimpleNamespace(compile=types.SimpleNamespace(_filename_map={FILE: 3}))
sys.modules["IPython"] = types.SimpleNamespace(get_ipython=lambda: shell)
import TorchDevice, torch
source = "kept = torch.ones(2**20, device='cuda')\\n" + "torch.cuda.caching_allocator_enable()"
for file in (FILE, "<ipython-input-12-0123456789ab>"):
    exec(compile(source, file, "exec"))
TorchDevice.report()
try:
    exec(compile("\\ntorch.empty(2**50, device='cuda')", FILE, "exec"))
except torch.OutOfMemoryError as error:
    print("made at cell 12, line 1 in <module>" in str(error), "ipykernel" in str(error))
"""


def test_in_a_notebook_cells_are_named() -> None:
    done = run_python(CELLS, anew=True, TORCHDEVICE_LOG_LEVEL="INFO")
    assert done.returncode == 0, done.stderr
    said = done.stderr.splitlines()
    for cell in ("cell 3", "cell 12"):
        assert f"TorchDevice: {cell}, line 1 <module>(): torch.ones: cuda -> cpu" in said
        assert any(line.startswith(f"TorchDevice: {cell}, line 2: torch.cuda") for line in said)
        assert f"{cell}, line 1" in done.stdout
    assert done.stdout.splitlines()[-1] == "True False"
    assert "ipykernel" not in done.stdout + done.stderr
