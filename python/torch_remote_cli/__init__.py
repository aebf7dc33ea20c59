"""The `torch-remote` command.

It is not in the package `torch_remote`, because importing that imports torch, which takes seconds.
This file is imported by every `import torch` (see `_autoload`), so it imports almost nothing.
"""

from __future__ import annotations

import atexit
import mmap
import os
import re
import sys

# Of this process and of its forks; a byte that is not 0: one of them has imported torch_remote.
_imported: mmap.mmap | None = None


def main(arguments: list[str] | None = None) -> int:
    """Runs a command line and returns its exit status; docs/command_line.md lists them."""
    from .dispatch import main as run

    os.environ.pop("TORCH_REMOTE_RUN", None)  # a redirected program's child, but no part of it
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
    set_up_run()
    url = os.environ.get("TORCH_REMOTE")
    # Equal in a child of `torch-remote run` that its parent has left alone.
    is_of_run = os.environ.get("TORCH_REMOTE_RUN") or url == os.environ.get("TORCH_REMOTE_RUN_ON")
    if url and not is_of_run:
        global _imported
        _imported = mmap.mmap(-1, mmap.PAGESIZE)
        atexit.register(_tell_if_unused, os.getpid())
    _explain_checkpoints()


def note_import() -> None:
    """torch_remote calls this when it is imported."""
    if _imported is not None:
        _imported[0] = 1


def set_up_run() -> None:
    """Does what `torch-remote run` has asked for, for this process and its children; else nothing.

    Called at the end of `import torch`. If torch_remote imports torch, that is in the middle of
    torch_remote's import, which therefore calls this at its end.
    """
    package = sys.modules.get("torch_remote")
    is_half_imported = package is not None and not hasattr(package, "__version__")
    if os.environ.get("TORCH_REMOTE_RUN") and not is_half_imported:
        from . import run_setup

        run_setup.set_up()


# Programs that start others, which may use the machine. They run by `-m`, or a script imports them.
_LAUNCHERS = ("torch.distributed.run", "accelerate.commands.launch", "deepspeed.launcher.runner")


def _tell_if_unused(pid: int) -> None:
    """At exit: TORCH_REMOTE named a machine, and this program has not asked for it."""
    launch = sys.modules.get("torch_remote._launch")
    url = os.environ.get("TORCH_REMOTE", "").partition("?")[0]
    is_command = "torch_remote_cli.errors" in sys.modules  # of ours
    main_spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    main_name = getattr(main_spec, "name", None)
    is_launcher = any(each in sys.modules or each == main_name for each in _LAUNCHERS)
    processes = sys.modules.get("multiprocessing.process")
    is_child = processes is not None and processes.parent_process() is not None
    if is_command or is_launcher or is_child or _has_children_that_may_use_it():
        return
    if launch is None and _imported is not None and _imported[0] != 0:
        return  # a fork may have used it
    if launch is not None and (launch.has_used_machine() or _has_told_why(url)):
        return
    if not url or os.getpid() != pid or sys.stderr is None:
        return
    if launch is None:
        script = sys.argv[0] if sys.argv[0].endswith(".py") else "SCRIPT"
        why = f"this program does not import torch_remote; `torch-remote run {script}` uses it"
    else:
        why = "this program has made no tensor on that device"
    print(f"torch_remote: TORCH_REMOTE={url} was not used: {why}", file=sys.stderr)


def _has_children_that_may_use_it() -> bool:
    """Spawned children import for themselves. Forks have what this process has imported, and note
    what they import: note_import()."""
    if any(
        f"multiprocessing.popen_{kind}" in sys.modules for kind in ("spawn_posix", "forkserver")
    ):
        return True
    return "torch_remote" in sys.modules and "multiprocessing.popen_fork" in sys.modules


def _has_told_why(url: str) -> bool:
    """Whether the program ended with an error of the machine's URL, or of another of our settings.

    Where these are wrong, no session is begun, so has_used_machine() does not know.
    """
    error = str(getattr(sys, "last_value", ""))
    return "TORCH_REMOTE_" in error or ("://" in url and url in error)


def _explain_checkpoints() -> None:
    """Makes torch.load say what a checkpoint of remote tensors needs. It is asked last of all."""
    from torch.serialization import register_package

    register_package(90, lambda storage: None, _refuse_location)


def _refuse_location(storage: object, location: str) -> None:
    device = location.partition(":")[0]
    if device not in ("remote", "modal"):
        return
    import torch

    name = torch._C._get_privateuse1_backend_name()
    if name in ("remote", "modal"):  # the other one: a process has one name for the device
        raise RuntimeError(
            f"this file has tensors of {location}, and in this process the device is named {name}: "
            f'give torch.load() map_location="{name}" or "cpu"'
        )
    raise RuntimeError(
        f"this file has tensors of {location}: import torch_{device} before torch.load(), or "
        'give it map_location="cpu"'
    )
