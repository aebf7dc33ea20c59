"""Doctor's checks of this machine that need neither torch nor a server."""

from __future__ import annotations

import difflib
import os
import platform
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from . import figures, machine, server_program
from .dispatch import version
from .environment import (
    KNOWN,
    LOG_LEVELS,
    OF_TORCH_DEVICE,
    OTHER_PREFIXES,
    SANDBOX,
    SANDBOXES,
)
from .errors import WRONG_USAGE, CommandError
from .findings import Finding
from .output import counted

CLOCK_TOLERANCE = 5.0  # seconds


def check_python() -> Iterator[Finding]:
    yield Finding("python", "ok", f"{platform.python_version()}, {sys.executable}")
    installed = version()
    if installed.startswith("unknown"):
        yield Finding(
            "torch-remote", "note", "is not installed by pip or make: no version is known"
        )
    else:
        yield Finding("torch-remote", "ok", installed)


def check_server_program(url: str) -> Iterator[Finding]:
    """Without it this machine can neither serve nor use `local`."""
    name = "server program"
    program = server_program.find()
    if program is None:
        if not server_program.IS_SUPPORTED and url != "local":
            yield Finding(name, "ok", "there is none for this system, and none is needed")
            return
        state = "problem" if url == "local" else "warning"
        remedy = "run `make build` or `pip install .`"
        if not server_program.IS_SUPPORTED:
            remedy = "set TORCH_REMOTE to a machine with a server, for example ssh://gpu-box"
        text = "torch-remote-server is missing: this machine cannot serve"
        if url == "local":
            text += ", and programs here use the embedded server"
        yield Finding(name, state, text, remedy)  # type: ignore[arg-type]
        return
    try:
        done = subprocess.run(
            [program, "--help"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Finding(name, "problem", f"{program} does not run: {error}", "build it again")
        return
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        remedy = "build it again for this torch: `make build` or `pip install .`"
        yield Finding(name, "problem", f"{program} does not run: {last}", remedy)
    else:
        yield Finding(name, "ok", str(program))


def check_toolchain() -> Iterator[Finding]:
    """Only for who builds torch-remote here."""
    compilers = [name for name in ("g++", "clang++", "clang++-14") if shutil.which(name)]
    missing = [name for name in ("cmake", "ninja") if not shutil.which(name)]
    if not compilers:
        missing.insert(0, "a C++20 compiler (g++ 12 or clang 14)")
    if missing:
        text = f"{', '.join(missing)} not found: needed only to build torch-remote here"
        yield Finding("toolchain", "note", text, "`make setup-system` installs them on Debian")
    else:
        yield Finding("toolchain", "ok", f"{', '.join(compilers)}, cmake, ninja")


def _wrong_values() -> Iterator[tuple[str, str, tuple[str, ...], str]]:
    """A variable, what is wrong in it, what may be written there, and the page that says so."""
    ours: dict[str, tuple[str, ...]] = {"TORCH_REMOTE_LOG": LOG_LEVELS, SANDBOX: SANDBOXES}
    for name, known in ours.items():
        value = os.environ.get(name)
        if value and value not in known:
            yield name, value, known, "docs/settings.md"
    for name, known in OF_TORCH_DEVICE.items():
        text = os.environ.get(name, "")
        values = [each.strip() for each in (text.split(",") if name.endswith("ORDER") else [text])]
        for value in values:
            if value and value.lower() not in (each.lower() for each in known):
                yield name, value, known, "docs/redirection.md"


def check_environment() -> Iterator[Finding]:
    """Values that are not known, and variables with a name like ours that nothing reads."""
    for name, value, known, page in _wrong_values():
        text = f"{name}: {value!r} is not {', '.join(known[:-1])} or {known[-1]}"
        remedy = f"correct it: {page} says what can be written there"
        yield Finding("environment", "problem", text, remedy)
    for name in sorted(os.environ):
        if not name.startswith("TORCH_REMOTE") or name in KNOWN or name.startswith(OTHER_PREFIXES):
            continue
        close = difflib.get_close_matches(name, KNOWN, n=1)
        remedy = f"did you mean {close[0]}? " if close else ""
        yield Finding(
            "environment",
            "warning",
            f"{name} is set, and torch-remote does not read it",
            f"{remedy}docs/settings.md lists the variables",
        )


def check_config() -> Iterator[Finding]:
    """The configuration file. The options of its machines, the probe checks."""
    config = machine.configuration()
    try:
        found = config is not None and config.read_config()
    except ValueError as error:
        remedy = "correct the file (docs/providers.md has its keys), or remove it"
        yield Finding("configuration", "problem", str(error), remedy)
        return
    if config is not None and found:
        yield Finding("configuration", "ok", str(config.config_path()))


def check_token_file(given: str | None) -> Iterator[Finding]:
    name = given or os.environ.get("TORCH_REMOTE_TOKEN_FILE")
    if not name:
        if os.environ.get("TORCH_REMOTE_TOKEN"):
            text = "TORCH_REMOTE_TOKEN holds the token, which child processes can read"
            yield Finding("token", "note", text, "a file (TORCH_REMOTE_TOKEN_FILE) is safer")
        return
    path = Path(name).expanduser()
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        is_empty = not path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        remedy = "copy the server's --token-file to this path"
        yield Finding("token", "problem", f"cannot read {path}: {why}", remedy)
        return
    if is_empty:
        yield Finding(
            "token", "problem", f"{path} is empty", "copy the server's --token-file there"
        )
    if mode & 0o077:
        text = f"{path} can be read by other users (mode {mode:o})"
        remedy = f"chmod 600 {path}; if others use this machine, make a new token on the server"
        yield Finding("token", "problem", text, remedy)
    elif not is_empty:
        yield Finding("token", "ok", str(path))


def check_metrics(given: str | None) -> Iterator[Finding]:
    """The metrics socket and the server's clock, where a socket is known."""
    try:
        path = figures.find_socket(given)
    except CommandError as error:
        if error.status == WRONG_USAGE:  # of the variable
            remedy = "set TORCH_REMOTE_METRICS to unix:///path, or unset it"
            yield Finding("metrics", "problem", str(error), remedy)
        return  # else none is known, which is usual
    try:
        before = time.time()
        now = figures.read(path)
    except CommandError as error:
        remedy = "start the server with `--metrics`, or unset TORCH_REMOTE_METRICS"
        yield Finding("metrics", "problem", str(error), remedy)
        return
    yield Finding("metrics", "ok", f"{path}: {counted(len(now.sessions), 'session')} on {now.host}")
    if now.time == 0:
        return  # an earlier server
    apart = now.time - before  # both in whole seconds or better; the socket answers at once
    if abs(apart) > CLOCK_TOLERANCE:
        text = f"the clock of {now.host} is {abs(apart):.0f} s {'ahead' if apart > 0 else 'behind'}"
        remedy = (
            "set both clocks by NTP (`timedatectl set-ntp true`): logs and certificates need it"
        )
        yield Finding("clock", "warning", text, remedy)
    else:
        yield Finding("clock", "ok", f"{now.host} and this machine agree")
