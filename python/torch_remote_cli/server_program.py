"""Where the server's program is. Finds the package without importing it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

IS_SUPPORTED = sys.platform == "linux"
MISSING = (
    (
        "torch_remote/bin/torch-remote-server is not installed beside this command; build it with "
        "`make build` or `pip install .`."
    )
    if IS_SUPPORTED
    else "torch-remote has no server for this system yet: serve on a machine with Linux."
)


def find() -> Path | None:
    spec = importlib.util.find_spec("torch_remote")
    if spec is None:
        return None
    # An editable install has two places: the sources and the built files.
    candidates = [
        Path(p) / "bin/torch-remote-server" for p in spec.submodule_search_locations or ()
    ]
    return next((path for path in candidates if path.exists()), None)
