"""The `torch-remote` command.

It is not in the package `torch_remote`, because importing that imports torch, which takes seconds.
This file is imported by every `import torch` (see `_autoload`), so it imports almost nothing.
"""

from __future__ import annotations

import os
import re
import sys


def main(arguments: list[str] | None = None) -> int:
    """Runs a command line and returns its exit status; docs/command_line.md lists them."""
    from .dispatch import main as run

    return run(arguments)


def replace_package_run() -> None:
    """Makes `python -m torch_remote` be `python -m torch_remote_cli`, before torch is imported.

    Python imports the package torch_remote first, which calls this. Until its `__main__` is found,
    the first word of sys.argv is `-m`.
    """
    if sys.argv[:1] != ["-m"]:
        return
    words = list(sys.orig_argv)
    name = len(words) - len(sys.argv)  # behind it are the arguments
    if words[name] == "torch_remote" or re.fullmatch(r"-\w*mtorch_remote", words[name]):
        words[name] += "_cli"
        os.execv(sys.executable, [sys.executable, *words[1:]])


def _autoload() -> None:
    """`import torch` calls this (entry point `torch.backends`). Does nothing unless asked to."""
    if os.environ.get("TORCH_REMOTE_AUTOLOAD") == "1":
        import torch_remote  # noqa: F401
    if "TORCH_REMOTE_RUN" in os.environ:
        from . import run_setup

        if run_setup.is_wanted():
            run_setup.set_up()
    _explain_checkpoints()


def _explain_checkpoints() -> None:
    """Makes torch.load say what a checkpoint of remote tensors needs. It is asked last of all."""
    from torch.serialization import register_package

    register_package(90, lambda storage: None, _refuse_location)


def _refuse_location(storage: object, location: str) -> None:
    device = location.partition(":")[0]
    if device in ("remote", "modal"):
        raise RuntimeError(
            f"this file has tensors of {location}: import torch_{device} before torch.load(), or "
            'give it map_location="cpu"'
        )
