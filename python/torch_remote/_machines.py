"""Machines: the servers this process is connected to, and their devices."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import cache
from html import escape
from itertools import zip_longest
from os import PathLike
from pathlib import Path

import torch

from torch_remote_cli.output import printable_lines

from . import _C, _config, _launch
from ._backend import name
from ._optimizers import forget_done


@cache
def server_path() -> Path:
    """The server's program beside the extension. In an editable install both are elsewhere."""
    programs = [
        Path(folder) / "bin" / "torch-remote-server"
        for folder in (Path(_C.__file__).parent, Path(__file__).parent)
    ]
    return next((program for program in programs if program.exists()), programs[0])


def present_server_path() -> Path:
    """The same, for who copies or runs it. Raises RuntimeError where there is none."""
    path = server_path()
    if path.exists():
        return path
    if sys.platform == "darwin":
        raise RuntimeError(
            "torch-remote has no server for macOS that could be copied or run here: install "
            "torch-remote on the machine that you want to use, and connect to it"
        )
    raise RuntimeError(f"{path} is missing: run `make build` or `pip install .`")


_ENDS_EMBEDDED = "stop(), or the end of this process, ends its server"
_ENDS_SESSION = (
    "stop(), or the end of this process, ends the session; whoever started the server ends that"
)

_HAS_ENDED = "stop() has ended the session"


class Machine:
    """One connected server. As a context manager it waits for its calls and stops."""

    def __init__(self, machine_id: int) -> None:
        self.id = machine_id

    @property
    def url(self) -> str:
        """What it was connected to. Does not wait."""
        return str(_C.machine_summary(self.id)[0])

    @property
    def devices(self) -> list[torch.device]:
        """Its devices, with their indices in this process. May wait for the handshake."""
        indices = [index for each in self._servers() for index in _C.machine_devices(each)]
        return [torch.device(name(), index) for index in indices]

    def _servers(self) -> tuple[int, ...]:
        """The ids of its sessions: one with each of its servers."""
        return (self.id, *_launch.others_of(self.id))

    def status(self) -> dict[str, str]:
        """Its url, host, pid, session, torch_version and state; `ends` says who stops it and when.

        The state is `open`, `resuming`, `lost` or, after `stop()`, `stopped`.
        """
        status = dict(_C.machine_info(self.id))
        if status["state"] == "stopped":
            return {**status, "ends": _HAS_ENDED}
        of_provider = _launch.launched.get(self.id)
        if of_provider is None:
            ends = _ENDS_EMBEDDED if status["url"] == "local" else _ENDS_SESSION
            return {**status, "ends": ends}
        more = of_provider.provider.status(of_provider.endpoint)
        return {**more, **status, "ends": of_provider.endpoint.ends}

    def logs(self) -> str:
        """What its server has printed, where a provider launched it; else where that is."""
        of_provider = _launch.launched.get(self.id)
        if of_provider is not None:
            return printable_lines(of_provider.provider.logs(of_provider.endpoint))
        url = _C.machine_summary(self.id)[0]
        if url == "local":
            return "(an embedded server prints its log to the standard error of this process)"
        return f"(the server at {url} prints its log to its own standard error, where it runs)"

    def stop(self) -> None:
        """Ends the session and drops unfinished calls; call `synchronize()` first to wait for them.

        Tensors of this machine raise SessionLost from now on. Prints failures never raised. A
        machine that a provider launched is ended too.
        """
        self._stop(False, _launch.stop_launched)

    def _stop(self, wait: bool, end: Callable[[int], None]) -> None:
        with ExitStack() as stack:  # each is stopped, also if one before it raises a failure
            stack.callback(end, self.id)
            for each in reversed(self._servers()):
                stack.callback(_C.machine_stop, each, wait)

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        """Stops the machine, after the calls of the block unless it ended with an exception.

        Raises a failure that was not raised in the block. After an exception, such as SessionLost,
        a machine that cannot be ended is only told, so that the exception is raised.
        """
        if kind is None:
            self._stop(True, _launch.stop_launched)
        else:
            self._stop(False, _launch.stop_launched_or_tell)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Machine) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        """Does not wait: before the handshake it lists the devices known so far."""
        servers = [_C.machine_summary(each) for each in self._servers()]
        devices = ", ".join(f"{name()}:{index}" for _, indices, _ in servers for index in indices)
        url, state = servers[0][0], _joined(state for _, _, state in servers)
        return f"Machine(id={self.id}, url={url!r}, devices=[{devices}], state={state!r})"

    def _repr_html_(self) -> str:
        """For notebooks: its state, and a table of its devices. Does not wait."""
        hosts, states, rows = [], [], ""
        for each in self._servers():
            _, indices, state = _C.machine_summary(each)
            known = _C.machine_properties(each)  # none before the handshake
            states.append(state)
            hosts += [str(known[0]["host"])] if known else []
            for index, properties in zip_longest(indices, known):
                rows += _html_row("td", *_describe_device(index, properties))
        host = f" on {_joined(hosts)}" if hosts else ""
        head = _html_row("th", "device", "name", "kind", "memory")
        title = escape(f"Machine {self.id}: {self.url}{host}, {_joined(states)}")
        return f"<table><caption>{title}</caption>{head}{rows}</table>"


def _joined(words: Iterable[str]) -> str:
    """Each word once."""
    return ", ".join(dict.fromkeys(words))


def _html_row(tag: str, *cells: str) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"


def _describe_device(
    index: int | None, properties: dict[str, str | int] | None
) -> tuple[str, str, str, str]:
    device = "-" if index is None else f"{name()}:{index}"  # a stopped machine has no indices
    if properties is None:
        return device, "-", "-", "-"
    memory = f"{int(properties['total_memory']) / 2**30:.1f} GiB"
    return device, str(properties["name"]), str(properties["kind"]), memory


def connect(
    url: str | None = None,
    *,
    token: str | None = None,
    token_file: str | PathLike[str] | None = None,
) -> Machine:
    """Connects a new machine and returns it. Without a URL: the configured one, else `local`.

    A URL is `local`, `unix:///path`, `tcp://host:port`, `tls://host:port`, or that of a provider,
    such as `ssh://host`; or it is a name from the configuration file. The first machine of a
    process is `remote:0`; later ones get the next indices. `token`, or what is in `token_file`, is
    for this machine only; `token=""` means none. Without either it is TORCH_REMOTE_TOKEN_FILE or
    TORCH_REMOTE_TOKEN.
    """
    url = _config.choose_default() if url is None else url
    if token is not None and token_file is not None:
        raise ValueError("connect() takes a token or a token_file, not both")
    if url == "local" and (token is not None or token_file is not None):
        raise ValueError('connect("local") starts a server of our own, which takes no token')
    if token_file is not None:
        token = _launch.read_token(token_file, _config.target_of(url).url)
    if token is not None and not isinstance(token, str):  # the value must not appear in a message
        raise TypeError(f"connect(): token is a str, not {type(token).__name__}")
    return Machine(_launch.connect_url(url, None if token is None else token.strip()))


def connect_through(url: str, command: list[str]) -> Machine:
    """Connects through a command whose standard input and output are the connection, such as ssh.

    The command ends in `torch-remote serve --stdio` on the server's machine. It is run again to
    resume a lost connection. `url` is the machine's name in messages. No token is used.
    """
    return Machine(_C.connect_through(url, command))


def machines() -> list[Machine]:
    """All machines connected now, the default one included."""
    ids = _C.machine_ids()
    others = {other for each in ids for other in _launch.others_of(each)}
    return [Machine(each) for each in ids if each not in others]


def cancel() -> None:
    """Drops the calls that were sent to any machine and have not begun, of every thread.

    Returns when what had begun is done. What a dropped call would have made is missing: using it
    raises. Tensors that it would have changed keep their values, and optimizers are as they were
    before the steps that were dropped. Another thread whose calls were dropped is told at its next
    call. Raises what failed before.
    """
    for machine_id in _C.machine_ids():
        _C.cancel(machine_id)


def synchronize() -> None:
    """Waits for every device of every machine. Raises failures that were not raised yet."""
    for machine_id in _C.machine_ids():
        for index in _C.machine_devices(machine_id):
            _C.synchronize(index)
    forget_done()
