"""What `torch-remote run` does at the end of `import torch`, in the script's process and in those
that it starts: ranks of torchrun, spawned processes, scripts that it runs.
"""

from __future__ import annotations

import atexit
import importlib
import os
import sys

VARIABLE = "TORCH_REMOTE_RUN"  # the process that `torch-remote run` became; children inherit it
URL_VARIABLE = "TORCH_REMOTE_RUN_ON"  # its TORCH_REMOTE
WAITS_VARIABLE = "TORCH_REMOTE_RUN_WAITS"


def is_child() -> bool:
    return os.environ.get(VARIABLE) != str(os.getpid())


_is_set_up = False


def set_up() -> None:
    """Doing it twice is the same as once."""
    global _is_set_up
    if _is_set_up:
        return
    _is_set_up = True
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
        if not is_child():  # children may be many, and few of them use the server
            print("torch-remote run: no line waited for the server", file=sys.stderr)
        return
    rows = [
        [wait.line or "(unknown)", count_text(wait.count), duration_text(wait.seconds)]
        for wait in waits[:15]
    ]
    print(table(("line that waited for the server", "waits", "time"), rows), file=sys.stderr)
