"""Connects machines: by address, through a provider, or when a device is first used."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from . import _C, _config, providers
from ._errors import ConnectionError
from .providers import Endpoint, Provider, Spec


@dataclass(frozen=True)
class Launched:
    """A machine of a provider."""

    provider: Provider
    endpoint: Endpoint

    def stop(self) -> None:
        self.provider.stop(self.endpoint)


launched: dict[int, Launched] = {}  # by the machine's id
reserved: dict[int, Spec] = {}  # what is launched when the index is first used
wanted_devices = 1  # of the default machine, at least
_starting = threading.RLock()


def connect_url(url: str, token: str | None = None, index: int | None = None) -> int:
    """Connects a machine, named by its URL or as in the configuration file. Returns its id."""
    target = _config.target_of(url)
    if token is None and target.token_file is not None and not _token_in_environment():
        token = read_token(target.token_file)
    scheme, found, _ = target.url.partition("://")
    if not found or scheme in providers.DIALLED:
        return _C.connect(target.url, token, index)
    try:
        provider = providers.find_provider(scheme)
    except ValueError as error:
        raise ValueError(f"'{url}' is not an address: {error}") from None
    return _connect_launched(provider, providers.parse_url(target.url, target.options), index)


def start(index: int) -> None:
    """Connects the machine of an index: the default one for 0, else one that is reserved."""
    with _starting:  # one thread starts it, the others wait
        if _C.has_device(index):
            return
        if index == 0:
            return connect_default(_config.choose_default())
        spec = reserved[index]
        if spec.provider == "local":
            _C.connect("local", None, index)
        else:
            _connect_launched(providers.find_provider(spec.provider), spec, index)


def connect_default(url: str) -> None:
    """Makes a machine remote:0. If it has too few devices, further sessions of it are the rest."""
    machine = connect_url(url, index=0)
    if wanted_devices == 1 or url == "local":
        return
    _C.machine_devices(machine)
    for index in range(1, wanted_devices):
        if not _C.has_device(index):
            connect_url(url, index=index)


def _connect_launched(provider: Provider, spec: Spec, index: int | None) -> int:
    endpoint = provider.launch(spec)
    try:
        if endpoint.command:
            machine = _C.connect_through(endpoint.url, list(endpoint.command), index)
        else:
            machine = _C.connect(endpoint.url, endpoint.token or "", index)
        _C.machine_devices(machine)  # waits for the handshake, so that a failure is noticed here
    except BaseException as error:
        explained = endpoint.explain(str(error)) if endpoint.explain else ""
        provider.stop(endpoint)
        if explained and isinstance(error, ConnectionError):
            raise ConnectionError(explained) from error
        raise
    launched[machine] = Launched(provider, endpoint)
    return machine


def stop_launched(machine: int) -> None:
    """Tells the provider of a machine to end it."""
    if machine in launched:
        launched.pop(machine).stop()


def stop_all() -> None:
    """At exit: ends what providers have launched."""
    for machine in list(launched):
        stop_launched(machine)


def read_token(token_file: str | PathLike[str]) -> str:
    path = Path(token_file).expanduser()
    try:
        token = path.read_text().strip()
    except OSError as error:
        raise ConnectionError(f"token_file: cannot read {path}: {error.strerror}") from error
    if not token:
        raise ValueError(f"token_file: there is no token in {path}")
    return token


def _token_in_environment() -> bool:
    import os

    return any(os.environ.get(f"TORCH_REMOTE_{each}") for each in ("TOKEN_FILE", "TOKEN"))
