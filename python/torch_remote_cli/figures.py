"""A server's figures, as its `--metrics` socket gives them to whoever connects."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .errors import UNREACHABLE, CommandError
from .output import printable
from .socket_user import AnotherUser, check_user

TIMEOUT = 5.0  # seconds; the server answers in milliseconds
MOST_BYTES = 16 << 20
_LINE = re.compile(r"torch_remote_(\w+)(?:\{(.*)\})? ([-+.\deE]+|NaN)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass
class SessionFigures:
    """One session. Counters are since its start; `answers` are requests that it answered."""

    id: str
    pid: int = 0
    peer: str = ""
    device: str = ""
    sandbox: str = ""  # as the session says
    devices: int = 0
    device_memory: int = 0
    started: float = 0
    calls: int = 0
    errors: int = 0
    answers: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    memory: int = 0
    storages: int = 0
    queued_bytes: int = 0


@dataclass
class OperatorFigures:
    """How often an operator ran on the server, and how long in all."""

    name: str
    calls: int = 0
    seconds: float = 0


@dataclass
class Figures:
    """A server at one moment, `time`, by its own clock."""

    host: str = ""
    pid: int = 0
    torch: str = ""
    protocol: int = 0
    sandbox: str = ""  # what sessions give up, and what the kernel lacks for that
    started: float = 0
    time: float = 0
    sessions_total: int = 0
    sessions_killed: int = 0
    clients_refused: int = 0
    sessions: list[SessionFigures] = field(default_factory=list)
    operators: list[OperatorFigures] = field(default_factory=list)

    @property
    def memory(self) -> int:
        return sum(session.memory for session in self.sessions)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


# Metric -> field and type.
_OF_SESSION: dict[str, tuple[str, type]] = {
    "session_start_time_seconds": ("started", float),
    "device_memory_bytes": ("device_memory", int),
    "calls_total": ("calls", int),
    "errors_total": ("errors", int),
    "answers_total": ("answers", int),
    "received_bytes_total": ("received_bytes", int),
    "sent_bytes_total": ("sent_bytes", int),
    "memory_bytes": ("memory", int),
    "storages": ("storages", int),
    "queued_bytes": ("queued_bytes", int),
}
_OF_SERVER: dict[str, tuple[str, type]] = {
    "start_time_seconds": ("started", float),
    "time_seconds": ("time", float),
    "sessions_total": ("sessions_total", int),
    "sessions_killed_total": ("sessions_killed", int),
    "refused_total": ("clients_refused", int),
}
_OF_OPERATOR: dict[str, tuple[str, type]] = {
    "operator_calls_total": ("calls", int),
    "operator_seconds_total": ("seconds", float),
}


def parse(text: str) -> Figures:
    """Lines that are not ours, or cut off, are left out."""
    figures = Figures()
    sessions: dict[str, SessionFigures] = {}
    operators: dict[str, OperatorFigures] = {}
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            continue
        name, value = match[1], float(match[3])
        labels = {
            key: printable(re.sub(r"\\(.)", r"\1", text))
            for key, text in _LABEL.findall(match[2] or "")
        }
        if name == "info":
            figures.host, figures.torch = labels.get("host", ""), labels.get("torch", "")
            figures.pid, figures.protocol = int(labels["pid"]), int(labels["protocol"])
            figures.sandbox = labels.get("sandbox", "")
        elif name == "session_info":
            session = sessions.setdefault(labels["session"], SessionFigures(labels["session"]))
            session.peer, session.device = labels["peer"], labels["device"]
            session.pid, session.devices = int(labels["pid"]), int(labels["devices"])
            session.sandbox = labels.get("sandbox", "")
        elif name in _OF_SERVER:
            _set(figures, _OF_SERVER[name], value)
        elif name in _OF_SESSION:
            key = labels["session"]
            _set(sessions.setdefault(key, SessionFigures(key)), _OF_SESSION[name], value)
        elif name in _OF_OPERATOR:
            key = labels["operator"]
            _set(operators.setdefault(key, OperatorFigures(key)), _OF_OPERATOR[name], value)
    figures.sessions = sorted(sessions.values(), key=lambda one: (one.started, one.id))
    figures.operators = sorted(operators.values(), key=lambda one: -one.seconds)
    return figures


def _set(target: object, place: tuple[str, type], value: float) -> None:
    setattr(target, place[0], place[1](value))


def find_socket(given: str | None) -> Path:
    """The path of the metrics socket: the option, TORCH_REMOTE_METRICS, or a usual place."""
    url = given or os.environ.get("TORCH_REMOTE_METRICS", "")
    if url:
        if "://" in url and not url.startswith("unix://"):
            raise CommandError(
                f"{url} is no metrics socket: it is unix:///path, as `serve --metrics` has it", 2
            )
        return Path(url.removeprefix("unix://")).expanduser()
    for path in usual_places():
        if path.exists():
            return path
    raise CommandError(
        "which server? Give --metrics unix:///path, or set TORCH_REMOTE_METRICS. A server gives "
        "its figures where `torch-remote serve --metrics unix:///path` says; without an option "
        f"this command looks at {' and '.join(map(str, usual_places()))}.",
        UNREACHABLE,
    )


def usual_places() -> list[Path]:
    own = os.environ.get("XDG_RUNTIME_DIR")
    folders = [Path(own)] if own else []
    return [folder / "torch-remote" / "metrics.sock" for folder in [*folders, Path("/run")]]


def read_text(path: Path) -> str:
    """What the server sends. Raises CommandError that says what is wrong with the socket."""
    try:
        with socket.socket(socket.AF_UNIX) as door:
            door.settimeout(TIMEOUT)
            door.connect(str(path))
            check_user(door)
            data = bytearray()
            while len(data) < MOST_BYTES and (part := door.recv(1 << 16)):
                data += part
    except (OSError, ValueError) as error:
        raise CommandError(f"{_why_not(path, error)}", UNREACHABLE) from error
    return data.decode(errors="replace")


def _why_not(path: Path, error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return f"there is no socket {path}: start a server with `--metrics unix://{path}`"
    if isinstance(error, ConnectionRefusedError):
        return f"nobody listens on {path}: its server has ended; start it again"
    if isinstance(error, AnotherUser):
        return (
            f"the figures of {path} are not trusted: {error}. If that is the server's user, run "
            f"this command as that user: sudo -u '#{error.listener}' torch-remote ..."
        )
    if isinstance(error, PermissionError):
        return f"{path} belongs to another user: run this command as the server's user"
    if isinstance(error, TimeoutError):
        return f"the server at {path} does not answer: it may be stopped (SIGSTOP)"
    return f"cannot read {path}: {error}"


def read(path: Path) -> Figures:
    text = read_text(path)
    try:
        return parse(text)
    except (KeyError, ValueError) as error:
        raise CommandError(f"what {path} sends are not the figures of a server: {error}") from error


@dataclass
class Rates:
    """Of one session, for a second."""

    calls: float = 0
    answers: float = 0
    received_bytes: float = 0
    sent_bytes: float = 0


def rates_of(before: Figures | None, after: Figures, seconds: float) -> dict[str, Rates]:
    """By session. A session that is new counts from its zeros; without `before` all are zero."""
    if before is None or seconds <= 0:
        return {session.id: Rates() for session in after.sessions}
    earlier = {session.id: session for session in before.sessions}
    rates = {}
    for session in after.sessions:
        old = earlier.get(session.id) or SessionFigures(session.id)
        rates[session.id] = Rates(
            *(
                max(0.0, (getattr(session, name) - getattr(old, name)) / seconds)
                for name in ("calls", "answers", "received_bytes", "sent_bytes")
            )
        )
    return rates


def operators_since(before: Figures | None, after: Figures) -> list[OperatorFigures]:
    """What ran between the two, the longest first; without `before` since the server's start."""
    earlier = {one.name: one for one in before.operators} if before is not None else {}
    since = []
    for one in after.operators:
        old = earlier.get(one.name) or OperatorFigures(one.name)
        since.append(
            OperatorFigures(one.name, one.calls - old.calls, max(0.0, one.seconds - old.seconds))
        )
    return sorted((one for one in since if one.calls > 0), key=lambda one: -one.seconds)
