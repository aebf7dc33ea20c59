"""The `torch-remote` command.

It is not in the package `torch_remote`, because importing that imports torch, which takes seconds.
This file is imported by every `import torch` (see `_autoload`), so it imports almost nothing.
"""

from __future__ import annotations

import os


def main(arguments: list[str] | None = None) -> int:
    """Runs a command line and returns its exit status; docs/command_line.md lists them."""
    from .dispatch import main as run

    return run(arguments)


def _autoload() -> None:
    """`import torch` calls this (entry point `torch.backends`). Does nothing unless asked to."""
    if os.environ.get("TORCH_REMOTE_AUTOLOAD") == "1":
        import torch_remote  # noqa: F401
    if "TORCH_REMOTE_RUN" in os.environ:
        from . import run_setup

        if run_setup.is_wanted():
            run_setup.set_up()
