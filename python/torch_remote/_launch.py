"""Connects machines: by address, through a provider, or when a device is first used."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

from . import _C, _config, _errors, _running, providers
from ._errors import ConnectionError
from .providers import Endpoint, Provider, Spec


@dataclass
class Launched:
    """A machine of a provider. Several of our machines may be sessions of it."""

    provider: Provider
    endpoint: Endpoint
    name: str
    kept: bool  # a program only connects to it: `torch-remote down` stops it
    users: int = 0
    others: tuple[int, ...] = ()  # ids of the sessions with its further servers
    lost: str | None = None  # why it was lost, as the provider says

    def stop(self) -> None:
        """Ends it when its last session has ended."""
        self.users -= 1
        if self.users <= 0 and not self.kept:
            self.provider.stop(self.endpoint)
            _running.forget(self.name)

    def stop_or_tell(self) -> None:
        """As stop(), where an error must not take the place of another one."""
        try:
            self.stop()
        except Exception as error:
            print(
                f"torch_remote: {error}; `torch-remote down {self.name}` tries it again",
                file=sys.stderr,
            )

    def explain(self, error: str) -> str:
        """Why it failed, in the provider's words; empty if the provider does not know."""
        if self.endpoint.explain is not None:
            return self.endpoint.explain(error)
        explain = getattr(self.provider, "explain", None)
        return str(explain(self.endpoint, error)) if explain is not None else ""


_has_asked = False  # whether this process has asked for a machine by way of Python
launched: dict[int, Launched] = {}  # by the machine's id
reserved: dict[int, Spec] = {}  # what is launched when the index is first used
wanted_devices = 1  # of the default machine, at least
_starting = threading.RLock()
_ASK_PATIENCE_S = 20  # how long the error of a lost machine waits for the provider's words
# torch_modal puts another function here: the URL to use when the default machine fails.
fall_back: Callable[[str, Exception], str | None] = lambda url, error: None  # noqa: E731


def connect_url(url: str, token: str | None = None, index: int | None = None) -> int:
    """Connects a machine, named by its URL, in the configuration file or by `torch-remote up`.

    Returns its id.
    """
    global _has_asked
    _has_asked = True
    running = None if _config.is_known(url) else _running.find(url)
    if running is not None:
        return _connect_to(_launched_before(running), index)
    target = _config.target_of(url)
    if token is None and target.token_file is not None and not _token_in_environment():
        token = read_token(target.token_file, target.url)
    scheme, found, _ = target.url.partition("://")
    if not found or scheme in providers.DIALLED:
        return _C.connect(target.url, token, index)
    try:
        provider = providers.find_provider(scheme)
    except ValueError as error:
        raise ValueError(f"'{url}' is not an address: {error}") from None
    spec = providers.parse_url(target.url, target.options)
    return _connect_to(launch(provider, spec), index)


def has_used_machine() -> bool:
    """Whether this process has asked for any machine, also in vain."""
    return _has_asked or _C.is_initialized() or _C.counters()["bytes_sent"] > 0


def start(index: int) -> None:
    """Connects the machine of an index: the default one for 0, else one that is reserved."""
    with _starting:  # one thread starts it, the others wait
        if _C.has_device(index):
            return
        if index == 0:
            return _start_default(_config.choose_default())
        spec = reserved[index]
        if spec.provider == "local":
            _C.connect("local", None, index)
        else:
            _connect_to(launch(providers.find_provider(spec.provider), spec), index)


def _start_default(url: str) -> None:
    try:
        connect_default(url)
    except Exception as error:
        other = fall_back(url, error)
        if other is None:
            raise
        connect_default(other)


def connect_default(url: str, beside: int | None = None) -> None:
    """Makes a machine remote:0. If it has too few devices, further sessions of it are the rest.

    `beside` is the id of a machine of this URL that is connected already: what a provider has
    launched for it is used again.
    """
    machine = _connect_again(url, 0, beside)
    if wanted_devices == 1 or url == "local":
        return
    _C.machine_devices(machine)
    for index in range(1, wanted_devices):
        if not _C.has_device(index):
            _connect_again(url, index, machine)


def _connect_again(url: str, index: int, beside: int | None) -> int:
    one = None if beside is None else launched.get(beside)
    if one is None or one.endpoint.command:  # a command is a server of its own
        return connect_url(url, index=index)
    return _connect_to(one, index)


def launch(provider: Provider, spec: Spec) -> Launched:
    """Launches a machine. Its file is written as soon as it is known to go on by itself.

    If the launch fails, the file stays only if the provider could not end what it had begun.
    """
    label = _running.new_label(spec.name or spec.provider)
    spec = replace(spec, name=spec.name or label, label=label)
    try:
        endpoint = provider.launch(spec)
    except BaseException:
        if _running.find(spec.name) is None:
            _running.remove_log(label)
        raise
    if endpoint.stays:
        _running.note(spec, endpoint)
    return Launched(provider, endpoint, spec.name, spec.keep)


def _launched_before(running: _running.Running) -> Launched:
    provider = providers.find_provider(running.provider)
    return Launched(provider, running.endpoint, running.name, kept=True)


def _connect_to(one: Launched, index: int | None) -> int:
    """Opens a session with each server of the machine. Returns the id of the first."""
    one.users += 1
    machines: list[int] = []
    try:
        for endpoint in (one.endpoint, *one.endpoint.also):
            machines.append(_dial(endpoint, None if machines else index))
        for machine in machines:
            _C.machine_devices(machine)  # waits for the handshake: a failure is noticed here
    except BaseException as error:
        for machine in machines:
            with suppress(Exception):
                _C.machine_stop(machine, False)
        explained = ""
        try:
            if isinstance(error, ConnectionError):
                with suppress(Exception):  # the provider may not answer either
                    explained = _ask(one, str(error))
        finally:
            one.stop_or_tell()
        if explained and one.kept:
            explained += f"; `torch-remote down {one.name}` forgets it"
        if explained:
            raise ConnectionError(explained) from error
        raise
    one.others = tuple(machines[1:])
    launched[machines[0]] = one
    return machines[0]


def _dial(endpoint: Endpoint, index: int | None) -> int:
    if endpoint.command:
        return _C.connect_through(endpoint.url, list(endpoint.command), index)
    return _C.connect(endpoint.url, endpoint.token or "", index)


def others_of(machine: int) -> tuple[int, ...]:
    """The ids of the sessions with the further servers of a machine."""
    return launched[machine].others if machine in launched else ()


def stop_launched(machine: int) -> None:
    """Tells the provider of a machine to end it."""
    if machine in launched:
        launched.pop(machine).stop()


def stop_launched_or_tell(machine: int) -> None:
    """The same; prints an error and does not raise it."""
    if machine in launched:
        launched.pop(machine).stop_or_tell()


def stop_all() -> None:
    """At exit: ends what providers have launched, each also if one before it fails."""
    for machine in list(launched):
        stop_launched_or_tell(machine)


def _why_lost(machine: int, text: str) -> str:
    """For the error of a lost session: what its provider says of the machine, asked once."""
    for first, one in list(launched.items()):
        if machine in (first, *one.others) and _C.machine_summary(machine)[2] == "lost":
            if one.lost is None:
                one.lost = ""  # if asking fails, nobody asks again
                with suppress(Exception):
                    one.lost = _ask(one, text)
            return "" if one.lost in ("", text) else f" ({one.lost})"
    return ""


def _ask(one: Launched, error: str) -> str:
    from .providers.common import logger, within

    if one.endpoint.explain is None:  # else only a log is read
        logger.info("%s does not answer; its provider is asked why", one.name)
    return within(_ASK_PATIENCE_S, "", lambda: one.explain(error))


_errors.hint_for_loss = _why_lost


def read_token(token_file: str | PathLike[str], url: str) -> str:
    """The token in a file, for the server of this URL."""
    path = Path(token_file).expanduser()
    try:
        with path.open() as file:
            mode = os.fstat(file.fileno()).st_mode
            token = file.read().strip()
    except OSError as error:
        raise ConnectionError(f"token_file: cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ValueError(f"token_file: {path} is no text file") from None
    if not token:
        raise ValueError(f"token_file: there is no token in {path}")
    if mode & 0o077:
        _tell_of_open_file(path, url)
    return token


# The rule of check_only_ours() in client/link/open.cpp, for TORCH_REMOTE_TOKEN_FILE.
def _tell_of_open_file(path: Path, url: str) -> None:
    what = f"token_file: other users can read {path}"
    if url.startswith(("tcp://", "tls://")) and _C.is_beyond_loopback(url):
        raise ConnectionError(
            f"{what}, so it is not used for {url}: run `chmod 600 {path}`, and if others use this "
            "machine make a new token on the server"
        )
    warnings.warn(f"{what}: run `chmod 600 {path}`", stacklevel=4)


def _token_in_environment() -> bool:
    return any(os.environ.get(f"TORCH_REMOTE_{each}") for each in ("TOKEN_FILE", "TOKEN"))
