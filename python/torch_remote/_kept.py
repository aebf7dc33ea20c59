"""What `torch-remote up`, `down`, `ps` and `logs` do: machines that outlive one program."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from . import _C, _config, _launch, _running, providers
from ._running import Running
from .providers import Endpoint, Provider


@dataclass(frozen=True)
class Listed:
    """A machine as `torch-remote ps` shows it."""

    name: str
    provider: str
    endpoint: Endpoint
    running: Running | None  # None: another computer, or another user's file, knows it
    state: str


def up(url: str, name: str | None = None) -> Running:
    """Launches a machine that no program stops, and tries to reach it."""
    target = _config.target_of(url)
    scheme, _, _ = target.url.partition("://")
    if scheme in (*providers.DIALLED, "local"):
        raise ValueError(f"{url} is a server that runs already: connect to it")
    provider = providers.find_provider(scheme)
    spec = providers.parse_url(target.url, target.options)
    spec = replace(spec, name=name or _running.new_name(scheme), keep=True)
    if _running.find(spec.name) is not None or _config.is_known(spec.name):
        raise ValueError(f"there is a machine {spec.name} already: see `torch-remote ps`")
    one = _launch.launch(provider, spec)
    one.kept = False  # until it is known to work
    if not one.endpoint.stays:
        provider.stop(one.endpoint)
        raise ValueError(f"{url} needs no `up`: its server starts and ends with the program")
    machine = _launch._connect_to(one, None)
    one.kept = True
    for each in (*one.others, machine):
        _C.machine_stop(each, False)
    _launch.stop_launched(machine)
    found = _running.find(spec.name)
    assert found is not None
    return found


def down(one: Listed) -> None:
    """Ends a machine and forgets it."""
    providers.find_provider(one.provider).stop(one.endpoint)
    if one.running is not None:
        _running.forget(one.name)


def logs(one: Listed) -> str:
    return providers.find_provider(one.provider).logs(one.endpoint)


def find(name: str) -> Listed | None:
    """The machine of this name, or of an address that `ps --all` has shown."""
    running = _running.find(name)
    if running is not None:
        return Listed(running.name, running.provider, running.endpoint, running, "")
    scheme, found, _ = name.partition("://")
    if found and scheme in providers.provider_names():
        for endpoint in providers.find_provider(scheme).list():
            if endpoint.url == name:
                return Listed(name, scheme, endpoint, None, "")
    return None


def listed(everywhere: bool, ask: bool = True) -> list[Listed]:
    """The machines of this user's files; `everywhere`: also those that providers list."""
    found = [
        Listed(each.name, each.provider, each.endpoint, each, _state(each) if ask else "")
        for each in _running.read_all()
    ]
    if not everywhere:
        return found
    known = {each.endpoint.handle for each in found}
    for name in providers.provider_names():
        with suppress(Exception):  # one that is not set up lists nothing
            for endpoint in providers.find_provider(name).list():
                if endpoint.handle not in known:
                    found.append(Listed(endpoint.url, name, endpoint, None, "running"))
    return found


def _state(running: Running) -> str:
    try:
        provider: Provider = providers.find_provider(running.provider)
        ask = getattr(provider, "state", None)
        now = "unknown" if ask is None else str(ask(running.endpoint))
    except Exception as error:
        return f"unknown: {error}"
    forgotten = "; the program that launched it has ended" if running.is_forgotten else ""
    return now + forgotten if now == "running" else now
