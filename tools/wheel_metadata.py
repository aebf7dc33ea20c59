"""The version and the dependencies of a wheel: pyproject.toml names this file.

Both have the minor version of the torch that the extension is compiled against. As in
cmake/Torch.cmake, Python is asked with -I, which finds the environment's torch from inside pip's
isolated build, and torch is not imported.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_QUESTION = 'import importlib.util as u; s = u.find_spec("torch"); print(s.origin if s else "")'
_state = "wheel"


def build_state(state: str) -> None:
    """scikit-build-core says here what it makes."""
    global _state
    _state = state


def dynamic_metadata(settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, Any]:
    minor = torch_minor() if _state != "sdist" else None  # sources serve every version
    if minor is None:  # without torch the build stops later: cmake/Torch.cmake says what to do
        return {"version": settings["version"], "dependencies": []}
    return {
        "version": f"{settings['version']}+torch{minor}",
        "dependencies": [f"torch =={minor}.*"],
    }


def torch_minor() -> str | None:
    """The minor version of this environment's torch, such as 2.13."""
    answer = subprocess.run(
        [sys.executable, "-I", "-c", _QUESTION], capture_output=True, text=True, check=True
    )
    if not answer.stdout.strip():
        return None
    text = Path(answer.stdout.strip()).with_name("version.py").read_text()
    found = re.search(r"^__version__ = '(\d+\.\d+)", text, re.M)
    return found.group(1) if found else None
