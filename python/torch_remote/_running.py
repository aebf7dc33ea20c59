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


def read_log(label: str) -> str:
    """What is in the log; empty if another computer has it."""
    log = log_of(label)
    return log.read_text(errors="replace") if log.exists() else ""


def remove_log(label: str) -> None:
    log_of(label).unlink(missing_ok=True)


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
