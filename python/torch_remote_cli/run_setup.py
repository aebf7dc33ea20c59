"""What `torch-remote run` does in the script's process, at the end of its `import torch`."""

from __future__ import annotations

import atexit
import importlib
import os
import sys

VARIABLE = "TORCH_REMOTE_RUN"  # the process that `torch-remote run` became, not its children
WAITS_VARIABLE = "TORCH_REMOTE_RUN_WAITS"


def is_wanted() -> bool:
    return os.environ.get(VARIABLE) == str(os.getpid())


def set_up() -> None:
    import torch_remote

    from .client_figures import Publisher

    # The user chose the server, so it is used where there is a local GPU too.
    os.environ["TORCHDEVICE_ORDER"] = "remote"
    os.environ.setdefault("TORCHDEVICE_POLICY", "foreign")
    importlib.import_module("TorchDevice")
    Publisher(torch_remote).start()
    if os.environ.get(WAITS_VARIABLE) == "1":
        atexit.register(print_waits)


def print_waits() -> None:
    import torch_remote

    from .output import count_text, duration_text, table

    waits = torch_remote.waits_by_line()
    if not waits:
        print("torch-remote run: no line waited for the server", file=sys.stderr)
        return
    rows = [
        [wait.line or "(unknown)", count_text(wait.count), duration_text(wait.seconds)]
        for wait in waits[:15]
    ]
    print(table(("line that waited for the server", "waits", "time"), rows), file=sys.stderr)
