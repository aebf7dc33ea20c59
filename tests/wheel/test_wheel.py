"""The wheel: what is in it, that it names no path of this machine, and that it works.

`tools/wheel.sh` makes it from build/release, so `make build` comes first.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import zipfile
from email import message_from_string
from pathlib import Path

import clean_environment
import pytest
import torch

ROOT = Path(__file__).parents[2]
MINOR = ".".join(torch.__version__.split(".")[:2])
# What the binaries may need beside torch's libraries. README.md names the package of OpenSSL's.
SYSTEM = r"lib(ssl|crypto)\.so\.3|lib(stdc\+\+|gcc_s|c|m|dl|pthread|rt)\.so\.\d|ld-linux-.*"
TORCH = r"lib(torch|torch_cpu|torch_python|torch_cuda|c10|c10_cuda)\.so"


def run(*words: str | Path, cwd: Path = ROOT) -> str:
    home = {"HOME": str(cwd)} if cwd != ROOT else {}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd, env={**os.environ, **home}, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run("tools/wheel.sh", sys.executable, "build/release", folder)
    (made,) = folder.glob("*.whl")
    return made


def test_pip_compiles_each_folder_as_one_unit(tmp_path: Path) -> None:
    """As scikit-build-core configures it: minutes less."""
    run("cmake", "-S", ROOT, "-B", tmp_path, "-DSKBUILD=2", "-DTORCH_REMOTE_TORCH=OFF")
    assert "TORCH_REMOTE_UNITY:BOOL=ON" in (tmp_path / "CMakeCache.txt").read_text()


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


@pytest.fixture(scope="module")
def binaries(unpacked: Path) -> list[Path]:
    files = [each for each in unpacked.rglob("*") if each.is_file()]
    return [each for each in files if each.read_bytes().startswith(b"\x7fELF")]


def test_the_version_and_the_dependency_name_the_minor_version_of_torch(unpacked: Path) -> None:
    (info,) = unpacked.glob("*.dist-info")
    headers = message_from_string((info / "METADATA").read_text())
    assert headers["Version"].endswith(f"+torch{MINOR}")
    assert re.sub(r"\s", "", headers["Requires-Dist"].partition(";")[0]) == f"torch=={MINOR}.*"
    assert "torch-remote = torch_remote_cli:main" in (info / "entry_points.txt").read_text()
    assert "[torch.backends]" in (info / "entry_points.txt").read_text()


def test_every_file_of_every_package_is_in_it(unpacked: Path) -> None:
    # The build has linked the extensions and the server program into python/.
    here = ROOT / "python"
    wanted = {
        str(each.relative_to(here))
        for each in here.rglob("*")
        if each.is_file() and "__pycache__" not in each.parts and each.name != "pyproject.toml"
    }
    assert wanted - {str(each.relative_to(unpacked)) for each in unpacked.rglob("*")} == set()


def test_libraries_are_found_beside_the_package_or_are_the_systems(binaries: list[Path]) -> None:
    assert len(binaries) >= 2  # an extension and the server program
    for binary in binaries:
        dynamic = run("readelf", "--dynamic", "--wide", binary)
        (paths,) = re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", dynamic)
        assert [each for each in paths.split(":") if not each.startswith("$ORIGIN/")] == []
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
        assert [each for each in needed if not re.fullmatch(f"{SYSTEM}|{TORCH}", each)] == []


def test_nothing_names_a_path_of_the_machine_that_built_it(unpacked: Path) -> None:
    paths = [str(ROOT).encode(), sys.prefix.encode(), torch.__path__[0].encode()]
    for each in unpacked.rglob("*"):
        content = each.read_bytes() if each.is_file() else b""
        assert [path for path in paths if path in content] == [], each


def test_it_works_where_only_torch_is(wheel: Path, tmp_path: Path) -> None:
    python = clean_environment.make(tmp_path / "clean")
    begin = time.monotonic()
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-index", wheel)
    assert time.monotonic() - begin < 60
    print(run(python, ROOT / "tests/wheel/smoke.py", cwd=tmp_path))
