#!/usr/bin/env python3
"""Make the built package importable without pip, which takes a minute where this takes a moment.

--venv DIR    links the built files into python/torch_remote, and puts python/ on the path of the
              virtual environment DIR, with the command bin/torch-remote.
--folder DIR  copies python/ and the built files to DIR/python, and makes the command
              DIR/bin/torch-remote.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / "python"
SERVER = "torch-remote-server"
INSTALLER = "make\n"  # tells our files from pip's


def project() -> tuple[str, dict[str, str]]:
    """The version, and the text of entry_points.txt, both as pyproject.toml has them."""
    text = (ROOT / "pyproject.toml").read_text()

    def value(pattern: str) -> str:
        match = re.search(pattern, text, re.M)
        if match is None:
            sys.exit(f"link_package: pyproject.toml has no line like {pattern}")
        return match.group(1)

    groups = {
        "console_scripts": "torch-remote = " + value(r'^torch-remote = "(.+)"'),
        "torch.backends": "torch_remote = " + value(r'^torch_remote = "(.+)"'),
    }
    return value(r'^version = "(.+)"'), groups


def write_metadata(site: Path, extra_files: list[str]) -> None:
    """What pip would leave: `torch-remote --version` and the entry points of torch read it."""
    version, groups = project()
    for old in site.glob("torch_remote-*.dist-info"):
        shutil.rmtree(old)
    info = site / f"torch_remote-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: torch-remote\nVersion: {version}\n"
    )
    (info / "INSTALLER").write_text(INSTALLER)
    (info / "entry_points.txt").write_text(
        "".join(f"[{group}]\n{line}\n\n" for group, line in groups.items())
    )
    names = ["METADATA", "INSTALLER", "entry_points.txt", "RECORD"]
    records = [f"{info.name}/{name},," for name in names] + [f"{name},," for name in extra_files]
    (info / "RECORD").write_text("\n".join(records) + "\n")


def write_command(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def remove_built(package: Path) -> None:
    for old in package.glob("_C*.so"):
        old.unlink()
    shutil.rmtree(package / "bin", ignore_errors=True)


def redirect_extension(built: Path) -> Path | None:
    """TorchDevice's own extension."""
    return next(iter((built / "TorchDevice").glob("_C.*.so")), None)


def link_into_venv(extension: Path, server: Path, venv: Path) -> None:
    site = next(iter(sorted((venv / "lib").glob("python3*/site-packages"))), None)
    if site is None:
        sys.exit(f"link_package: {venv} is not a virtual environment; `make setup` makes it.")
    if any(
        path.read_text() != INSTALLER for path in site.glob("torch_remote-*.dist-info/INSTALLER")
    ):
        sys.exit(f"link_package: pip has installed torch-remote in {venv}: uninstall it first.")

    package = PYTHON / "torch_remote"
    remove_built(package)
    (package / "bin").mkdir()
    (package / extension.name).symlink_to(extension)
    (package / "bin" / SERVER).symlink_to(server)
    redirect = redirect_extension(extension.parent)
    if redirect is not None:
        remove_built(PYTHON / "TorchDevice")
        (PYTHON / "TorchDevice" / redirect.name).symlink_to(redirect)

    (site / "torch_remote.pth").write_text(f"{PYTHON}\n")
    write_metadata(site, ["torch_remote.pth", "../../../bin/torch-remote"])
    write_command(
        venv / "bin/torch-remote",
        f"#!{venv}/bin/python\nimport sys\n\n"
        "from torch_remote_cli import main\n\nsys.exit(main())\n",
    )


def copy_to_folder(extension: Path, server: Path, folder: Path) -> None:
    target = folder / "python"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(PYTHON, target, ignore=shutil.ignore_patterns("__pycache__", "_C*.so", "bin"))
    package = target / "torch_remote"
    (package / "bin").mkdir(parents=True)
    shutil.copy2(extension, package / extension.name)
    shutil.copy2(server, package / "bin" / SERVER)
    redirect = redirect_extension(extension.parent)
    if redirect is not None:
        shutil.copy2(redirect, target / "TorchDevice" / redirect.name)
    write_metadata(target, [])
    write_command(
        folder / "bin/torch-remote",
        '#!/bin/sh\nhere=$(dirname "$(readlink -f "$0")")\n'
        'PYTHONPATH="$here/../python${PYTHONPATH:+:$PYTHONPATH}"\nexport PYTHONPATH\n'
        f'exec "{sys.executable}" -m torch_remote_cli "$@"\n',
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--built", type=Path, required=True, help="the build folder of src/")
    parser.add_argument("--venv", type=Path)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    built = options.built.resolve()
    extension, server = next(iter(built.glob("_C.*.so")), None), built / SERVER
    if extension is None or not server.exists():
        sys.exit(f"link_package: {built} has no _C extension or no {SERVER}; build first.")
    if options.venv:
        link_into_venv(extension, server, options.venv.resolve())
    if options.folder:
        copy_to_folder(extension, server, options.folder.resolve())


if __name__ == "__main__":
    main()
