"""tools/check_layers.py, on small source trees."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The tool, with a table of four rows."""
    spec = importlib.util.spec_from_file_location("check_layers", ROOT / "tools/check_layers.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rows = {"low": [], "high/a": ["low"], "high/b": ["low", "high/a"], "high": ["high/b"]}
    monkeypatch.setattr(module, "ALLOWED", rows)
    return module


def complaints(tool: ModuleType, root: Path, files: dict[str, list[str]]) -> list[str]:
    """What the tool prints for a tree of files, each with the headers that it includes."""
    for name, headers in files.items():
        path = root / "src" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f'#include "{header}"\n' for header in headers))
    count, bad = tool.check(root / "src")
    assert count == len(files)
    return list(bad)


def test_a_module_may_have_a_header_a_source_and_an_impl_header(
    tool: ModuleType, tmp_path: Path
) -> None:
    files = {"low/x.h": [], "low/x_impl.h": ["low/x.h"], "low/x.cpp": ["low/x_impl.h"]}
    assert complaints(tool, tmp_path, files) == []


def test_a_cycle_is_told_once_as_a_path(tool: ModuleType, tmp_path: Path) -> None:
    files = {
        "low/x.h": [],
        "low/x.cpp": ["low/x.h", "low/y.h"],
        "low/y.h": ["low/z.h"],
        "low/z.h": [],
        "low/z_impl.h": ["low/x.h"],
        "low/other.h": ["low/x.h"],
    }
    assert complaints(tool, tmp_path, files) == [
        "include cycle: low/x -> low/y -> low/z -> low/x",
    ]


def test_each_of_two_cycles_through_one_module_is_told(tool: ModuleType, tmp_path: Path) -> None:
    files = {"low/x.h": ["low/y.h", "low/z.h"], "low/y.h": ["low/x.h"], "low/z.h": ["low/x.h"]}
    assert complaints(tool, tmp_path, files) == [
        "include cycle: low/x -> low/y -> low/x",
        "include cycle: low/x -> low/z -> low/x",
    ]


def test_a_sub_folder_includes_what_its_own_row_lists(tool: ModuleType, tmp_path: Path) -> None:
    files = {
        "low/x.h": [],
        "high/a/x.h": ["low/x.h"],
        "high/a/y.h": ["high/b/x.h", "high/top.h"],
        "high/b/x.h": ["high/a/x.h"],
        "high/top.h": ["high/b/x.h", "high/a/x.h"],
    }
    assert complaints(tool, tmp_path, files) == [
        "src/high/a/y.h: high/a may not include high/b/x.h",
        "src/high/a/y.h: high/a may not include high/top.h",
        "src/high/top.h: high may not include high/a/x.h",
    ]


def test_a_folder_without_a_row_is_told(tool: ModuleType, tmp_path: Path) -> None:
    files = {"new/x.h": [], "high/c/x.h": [], "low/part/x.h": []}
    assert complaints(tool, tmp_path, files) == [
        "table: src/high/c has no row",
        "table: src/new has no row",
    ]


def test_a_row_names_only_rows_above_it(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "ALLOWED", {"high/a": ["high/b"], "high/b": ["high/a"], "high": []})
    assert complaints(tool, tmp_path, {"high/a/x.h": []}) == [
        "table: high/a names high/b below it",
    ]


def test_bytes_of_messages_are_written_in_wire_only(tool: ModuleType, tmp_path: Path) -> None:
    source = tmp_path / "src/low/x.cpp"
    source.parent.mkdir(parents=True)
    source.write_text("writer.varint(7);\nconst wire::Message framed(writer, wire::Tag::kCall);\n")
    bad = tool.check(tmp_path / "src")[1]
    assert [line.split(": ")[1].split(" ")[0] for line in bad] == [
        "writer.varint(",
        "wire::Message",
        "wire::Tag::k",
    ]


def test_handlers_of_messages_may_name_tags_but_write_no_bytes(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "MAY_NAME_TAGS", "low")
    source = tmp_path / "src/low/x.cpp"
    source.parent.mkdir(parents=True)
    source.write_text("table.add<&A::on_call>(wire::Tag::kCall, *this);\nreader.varint();\n")
    bad = tool.check(tmp_path / "src")[1]
    assert [line.split(": ")[1].split(" ")[0] for line in bad] == ["reader.varint("]


def test_headers_of_one_system_are_for_files_of_that_system(
    tool: ModuleType, tmp_path: Path
) -> None:
    headers = "#include <linux/filter.h>\n#include <sys/epoll.h>\n#include <mach/mach.h>\n"
    for name in ("low/x.cpp", "low/x_linux.cpp", "low/x_macos.cpp", "low/fine.cpp"):
        path = tmp_path / "src" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#include <sys/socket.h>\n" if "fine" in name else headers)
    advice = "include it in a file named"
    assert tool.check(tmp_path / "src")[1] == [
        f"src/low/x.cpp: linux/filter.h is linux only: {advice} *_linux",
        f"src/low/x.cpp: sys/epoll.h is linux only: {advice} *_linux",
        f"src/low/x.cpp: mach/mach.h is macos only: {advice} *_macos",
        f"src/low/x_linux.cpp: mach/mach.h is macos only: {advice} *_macos",
        f"src/low/x_macos.cpp: linux/filter.h is linux only: {advice} *_linux",
        f"src/low/x_macos.cpp: sys/epoll.h is linux only: {advice} *_linux",
    ]


def test_the_server_includes_headers_of_linux_everywhere(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "ALLOWED", {"server": []})
    path = tmp_path / "src/server/x.cpp"
    path.parent.mkdir(parents=True)
    path.write_text("#include <sys/prctl.h>\n")
    assert tool.check(tmp_path / "src")[1] == []
