"""What differs on macOS, under its name on this system. Nothing here runs on a Mac."""

from __future__ import annotations

import importlib.util
import os
import struct
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from torch_remote import _machines, _running
from torch_remote_cli import checks_local, server_program

ROOT = Path(__file__).resolve().parents[2]


def test_a_provider_that_copies_the_server_says_that_macos_has_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(_machines, "server_path", lambda: tmp_path / "absent")
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(RuntimeError, match="no server for macOS"):
        _machines.present_server_path()
    monkeypatch.setattr(sys, "platform", "linux")
    with pytest.raises(RuntimeError, match="make build"):
        _machines.present_server_path()


def test_doctor_wants_no_server_program_on_macos_unless_local_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_program, "IS_SUPPORTED", False)
    monkeypatch.setattr(server_program, "find", lambda: None)
    (elsewhere,) = checks_local.check_server_program("ssh://gpu-box")
    (local,) = checks_local.check_server_program("local")
    assert elsewhere.state == "ok"
    assert local.state == "problem" and "TORCH_REMOTE" in local.remedy


def test_a_process_is_known_to_run_without_proc() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert _running._runs(os.getpid())
    assert _running._runs(1)  # another user's, unless this is root
    assert not _running._runs(ended.pid)


@pytest.fixture
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_mach_o", ROOT / "tools/check_mach_o.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def mach_o(symbols: list[tuple[str, int, int]]) -> bytes:
    """A file with one library and these symbols: name, type, number of the library."""
    name = b"/usr/lib/libone.dylib\0\0\0"
    library = struct.pack("<6I", 0xC, 24 + len(name), 24, 0, 0, 0) + name
    begin = 32 + len(library) + 24
    strings, entries = b"\0", b""
    for text, kind, place in symbols:
        entries += struct.pack("<IBBHQ", len(strings), kind, 0, place << 8, 0)
        strings += text.encode() + b"\0"
    names = begin + len(entries)
    table = struct.pack("<6I", 0x2, 24, begin, len(symbols), names, len(strings))
    size = len(library) + len(table)
    head = struct.pack("<8I", 0xFEEDFACF, 0x0100000C, 0, 6, 2, size, 0, 0)
    return head + library + table + entries + strings


DEFINED, WANTED = 0x0F, 0x01
INIT = ("_PyInit__C", DEFINED, 0)


def test_a_module_may_want_names_of_libraries_and_of_python(tool: ModuleType) -> None:
    wanted = [("_one", WANTED, 1), ("_PyErr_Clear", WANTED, 0xFE), ("__Py_Dealloc", WANTED, 0)]
    summary, bad = tool.check(mach_o([INIT, *wanted]))
    assert (summary, bad) == ("2 of Python, 1 of libone.dylib", [])


def test_a_name_that_nothing_has_is_told(tool: ModuleType) -> None:
    _, bad = tool.check(mach_o([INIT, ("__Z7missingv", WANTED, 0xFE)]))
    assert bad == ["no library has __Z7missingv"]


def test_a_library_that_is_no_extension_module_is_told(tool: ModuleType) -> None:
    assert tool.check(mach_o([]))[1] == ["has no _PyInit__C"]
