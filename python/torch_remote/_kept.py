"""What `torch-remote up`, `down`, `ps` and `logs` do: machines that outlive one program."""

from __future__ import annotations

from dataclasses import dataclass, replace

from . import _C, _config, _launch, _running, providers
from ._running import Running
from .providers import Endpoint, Provider
from .providers.common import ENDED


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
    if scheme == "local":
        raise ValueError(f"{url} needs no `up`: each program starts that server for itself")
    if scheme in providers.DIALLED:
        raise ValueError(f"{url} is a server that runs already: connect to it")
    provider = providers.find_provider(scheme)
    spec = providers.parse_url(target.url, target.options)
    if name and (_running.find(name) is not None or _config.is_known(name)):
        raise ValueError(f"there is a machine {name} already: see `torch-remote ps`")
    spec = replace(spec, name=_running.checked(name) if name else "", keep=True)
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
    found = _running.find(one.name)
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
        for endpoint in providers.machines_of(scheme):
            if endpoint.url == name:
                return Listed(name, scheme, endpoint, None, "")
    return None


def listed(everywhere: bool, ask: bool = True) -> list[Listed]:
    """The machines of this user's files; `everywhere`: also those that providers list."""
    found = []
    for each in _running.read_all():
        state = _state(each) if ask else ""
        if state == ENDED and each.is_forgotten:  # it has ended with its program
            _running.forget(each.name)
        else:
            found.append(Listed(each.name, each.provider, each.endpoint, each, state))
    if not everywhere:
        return found
    known = {each.endpoint.handle for each in found}
    labels = [(each.provider, each.running.label) for each in found if each.running]
    known |= {f"{provider}://{label}" for provider, label in labels if label}
    for name in providers.provider_names():
        for one in _listed_by(name):
            if one.endpoint.handle not in known and one.endpoint.url not in known:
                found.append(one)
    return found


def _listed_by(name: str) -> list[Listed]:
    """What a provider lists. One that is set up and does not answer is a line of its own."""
    try:
        there = providers.machines_of(name)
    except Exception as error:
        url = f"{name}://"
        return [Listed(url, name, Endpoint(url, handle=url), None, f"unknown: {error}")]
    return [Listed(each.url, name, each, None, "running") for each in there]


def _state(running: Running) -> str:
    try:
        provider: Provider = providers.find_provider(running.provider)
        ask = getattr(provider, "state", None)
        now = "unknown" if ask is None else str(ask(running.endpoint))
    except Exception as error:
        return f"unknown: {error}"
    forgotten = "; the program that launched it has ended" if running.is_forgotten else ""
    return now + forgotten if now == "running" else now
