"""The machines that providers have launched for this user, also in earlier runs, as files.

`$XDG_STATE_HOME/torch-remote/machines` (`~/.local/state` by default) has a file for each machine
that goes on without this process: `NAME.json`. A provider writes it as soon as the machine exists,
so that `torch-remote ps` and `down` find it even if this process is killed. Only the owner can read
it, for it has the token. `LABEL.log` is what a command that carries a connection has printed; a
label is what the provider calls the machine.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .providers import Endpoint, Spec


@dataclass(frozen=True)
class Running:
    """A machine that was launched and not stopped, as its file says."""

    name: str
    provider: str
    url: str  # as it was asked for
    endpoint: Endpoint
    kept: bool  # launched by `torch-remote up`: no program stops it
    pid: int  # of the process that launched it
    started: float  # seconds since 1970
    label: str = ""  # what the provider calls it

    @property
    def is_forgotten(self) -> bool:
        """Whether the program that would have stopped it has ended without doing so."""
        return not self.kept and not _runs(self.pid)


def _runs(pid: int) -> bool:
    if pid <= 0:  # a damaged record; the system takes such a number for a group of processes
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it is another user's
    return True


def folder() -> Path:
    """The folder of the files, which may be missing."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "torch-remote" / "machines"


def _make(path: Path) -> None:
    """An empty file that only its owner can read, in the folder."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch(mode=0o600)


LABELS_BEGIN = "torch-remote-"


def new_label(name: str) -> str:
    """A name for a pod, a job or an actor: small letters, digits and `-`.

    It is new, so that ending this machine never ends a pod or a job of the same name.
    """
    letters = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:30]
    return f"{LABELS_BEGIN}{letters}-{secrets.token_hex(4)}"


def log_of(label: str) -> Path:
    """The log of the command that carries this machine's connection."""
    return folder() / f"{checked(label)}.log"


def make_log(label: str) -> Path:
    """Makes an empty log, or keeps the one that is there."""
    log = log_of(label)
    _make(log)
    return log


KEPT_BYTES = 64 << 10  # of a log

# Runs a command whose standard error goes to the log $0: of each run the first 64 KiB at once and
# the last 64 KiB when it ends, after the last 64 KiB of earlier runs. So the log has 192 KiB at
# most, whatever the other end writes. The command keeps the process, and its standard input and
# output. The pipe is there until all is in the log. Where no pipe can be made, nothing is logged.
_LOGGED = """
earlier=$(tail -c 65536 "$0" 2>/dev/null; echo .)
(umask 077; printf %s "${earlier%.}" >"$0") 2>/dev/null
pipe="$0.$$"
mkfifo -m 600 "$pipe" 2>/dev/null || exec "$@" 2>/dev/null
{ dd bs=256 count=256; tail -c 65536; rm -f "$pipe"; } <"$pipe" >>"$0" 2>/dev/null &
exec "$@" 2>"$pipe"
"""


def logged(log: Path, command: Sequence[str]) -> tuple[str, ...]:
    """The command with its standard error appended to a log that does not grow without limit."""
    return ("sh", "-c", _LOGGED, str(log), *command)


def wait_for_log(log: Path, patience_s: float = 2) -> None:
    """Until a command that has ended has all its words in the log."""
    end = time.monotonic() + patience_s
    while any(log.parent.glob(f"{log.name}.*")) and time.monotonic() < end:
        time.sleep(0.01)


def read_end(log: Path) -> str:
    """The end of a log; empty if there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - KEPT_BYTES))
            return file.read(KEPT_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return ""


def read_log(label: str) -> str:
    """The end of the log; empty if another computer has it."""
    return read_end(log_of(label))


def remove_log(label: str) -> None:
    log = log_of(label)
    for each in (log, *log.parent.glob(f"{log.name}.*")):
        each.unlink(missing_ok=True)


def note(spec: Spec, endpoint: Endpoint) -> None:
    """Writes the file of a machine; again when more is known of it."""
    before = find(spec.name)
    content = {
        "name": spec.name,
        "label": spec.label,
        "provider": spec.provider,
        "url": spec.url,
        "endpoint": _to_json(endpoint),
        "kept": spec.keep,
        "pid": os.getpid(),
        "started": before.started if before else time.time(),
    }
    path = _file(spec.name)
    new = path.with_suffix(f".{secrets.token_hex(4)}")
    _make(new)
    new.write_text(json.dumps(content, indent=1))
    new.replace(path)  # complete, or not there


def forget(name: str) -> None:
    """Removes the file and the log of a machine that was stopped."""
    found = find(name)
    if found is not None:
        remove_log(found.label or name)
    _file(name).unlink(missing_ok=True)


def find(name: str) -> Running | None:
    if not re.fullmatch(r"[\w.-]+", name):
        return None
    try:
        return _from_json(json.loads(_file(name).read_text()))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def names() -> list[str]:
    """Of all machines."""
    return [path.stem for path in folder().glob("*.json")]


def read_all() -> list[Running]:
    """All machines, the oldest first."""
    found = [find(each) for each in names()]
    return sorted((each for each in found if each is not None), key=lambda each: each.started)


def checked(name: str) -> str:
    if not re.fullmatch(r"[\w-][\w.-]*", name):
        raise ValueError(f"{name!r} is no name of a machine: write letters, digits and '-'")
    return name


def _file(name: str) -> Path:
    return folder() / f"{checked(name)}.json"


def _to_json(endpoint: Endpoint) -> dict[str, Any]:
    fields = {each.name: getattr(endpoint, each.name) for each in dataclasses.fields(endpoint)}
    del fields["explain"]
    return {**fields, "also": [_to_json(each) for each in endpoint.also]}


def _from_json(content: dict[str, Any]) -> Running:
    return Running(**{**content, "endpoint": _endpoint(content["endpoint"])})


def _endpoint(content: dict[str, Any]) -> Endpoint:
    from .providers import Endpoint

    also = tuple(_endpoint(each) for each in content["also"])
    return Endpoint(**{**content, "command": tuple(content["command"]), "also": also})
