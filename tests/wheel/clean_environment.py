"""A virtual environment that has torch, what torch needs, and nothing else.

Links lead to this environment's torch: `pip install torch` takes a minute.
"""

from __future__ import annotations

import re
import sysconfig
import venv
from importlib import metadata
from pathlib import Path


def make(home: Path) -> Path:
    """Makes the environment. Returns its Python."""
    venv.create(home, symlinks=True)
    site = Path(sysconfig.get_path("platlib", vars={"base": str(home), "platbase": str(home)}))
    for distribution in _needed_by("torch", {}).values():
        for name in {each.parts[0] for each in distribution.files or ()} - {"..", "__pycache__"}:
            (site / name).symlink_to(Path(str(distribution.locate_file(name))))
    return home / "bin/python"


def _needed_by(
    name: str, known: dict[str, metadata.Distribution]
) -> dict[str, metadata.Distribution]:
    """Adds a distribution to `known`, and all that it needs without extras."""
    try:
        known[name] = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return known  # needed on other platforms only
    for line in known[name].requires or ():
        found = re.match(r"[\w.-]+", line)
        if found and "extra ==" not in line and found[0] not in known:
            _needed_by(found[0], known)
    return known
