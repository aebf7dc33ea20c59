"""Providers: what turns a URL such as `ssh://host` into a server that can be reached.

A provider is a module, or any object, with five functions:

    launch(spec) -> Endpoint     starts a server, or makes ready to; raises if it cannot
    status(endpoint) -> dict     what is known of it now, for `Machine.status()`
    logs(endpoint) -> str        what the server has printed, for `Machine.logs()`
    stop(endpoint)               ends what `launch()` started; may be called again
    machines() -> [Endpoint]     what runs now, also of other processes

and, where the provider can say why a machine has failed or was taken away:

    explain(endpoint, error) -> str     one sentence, or "" if it does not know
    state(endpoint) -> str              `running`, `ended`, or what else has become of it

`launch()` is called when the machine is first used, by one thread at a time. A package adds its own
with an entry point of the group `torch_remote.providers`, whose name is the URL's scheme:

    [project.entry-points."torch_remote.providers"]
    mycloud = "my_package.torch_remote_provider"
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import metadata
from typing import Protocol, cast
from urllib.parse import parse_qsl, urlsplit

from .._gpus import GPUType, choose_gpu

GROUP = "torch_remote.providers"
# Addresses that the C++ client dials itself.
DIALLED = ("unix", "tcp", "tls")


@dataclass(frozen=True)
class Spec:
    """What is to be launched: a URL in its parts."""

    provider: str
    url: str
    host: str = ""  # with user and port, as written
    gpu: GPUType | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    name: str = ""  # what `torch-remote ps` calls the machine; the launcher sets it
    label: str = ""  # what the provider calls it: no other machine has it; the launcher sets it
    keep: bool = False  # `torch-remote up`: the machine outlives this process


@dataclass(frozen=True)
class Endpoint:
    """A server that can be reached: at `url`, or through `command` (docs/providers.md)."""

    url: str  # for messages; without a command it is dialled: unix://, tcp:// or tls://
    token: str | None = None
    command: tuple[str, ...] = ()  # its standard input and output are the connection
    handle: str = ""  # the provider's own name for it
    ends: str = ""  # who stops it, and when
    # Given what went wrong, says why in the provider's words, and what to do.
    explain: Callable[[str], str] | None = None
    also: tuple[Endpoint, ...] = ()  # further servers of the same machine: its next devices
    stays: bool = False  # has a life of its own: `torch-remote ps` lists it, `down` ends it
    usd_per_hour: float | None = None


class Provider(Protocol):
    def launch(self, spec: Spec) -> Endpoint: ...
    def status(self, endpoint: Endpoint) -> dict[str, str]: ...
    def logs(self, endpoint: Endpoint) -> str: ...
    def stop(self, endpoint: Endpoint) -> None: ...
    def machines(self) -> list[Endpoint]: ...


# The scheme of a URL, and the module. None of them is imported before it is used.
_BUILT_IN = {
    "k8s": f"{__name__}.kubernetes",
    "modal": f"{__name__}.modal",
    "ray": f"{__name__}.ray",
    "runpod": f"{__name__}.runpod",
    "sky": f"{__name__}.skypilot",
    "slurm": f"{__name__}.slurm",
    "ssh": f"{__name__}.ssh",
}
# URLs of these name a GPU type where others have a host.
_NAME_A_GPU = ("modal", "runpod", "sky")
_registered: dict[str, Provider] = {}


def register_provider(name: str, provider: Provider) -> None:
    """Makes `name://…` URLs use this provider, in this process. Replaces one of that name."""
    _registered[name] = provider


def provider_names() -> list[str]:
    """The schemes of all providers, installed ones included."""
    return sorted({*_registered, *_BUILT_IN, *(each.name for each in _entry_points())})


def find_provider(name: str) -> Provider:
    """Imports a provider. ValueError lists those that there are."""
    if name in _registered:
        return _registered[name]
    for entry in _entry_points():
        if entry.name == name:
            register_provider(name, cast(Provider, entry.load()))
            return _registered[name]
    if name not in _BUILT_IN:
        there = ", ".join([*DIALLED, *provider_names()])
        raise ValueError(
            f"there is no provider {name!r}; there are local, {there}. Other packages add theirs "
            f"by the entry point group {GROUP!r}."
        )
    return cast(Provider, importlib.import_module(_BUILT_IN[name]))


def machines_of(name: str) -> list[Endpoint]:
    """What runs now, as the provider says. In older providers the function's name is `list`."""
    provider = find_provider(name)
    machines = getattr(provider, "machines", None)
    return list(machines() if callable(machines) else getattr(provider, "list")())  # noqa: B009


def _entry_points() -> list[metadata.EntryPoint]:
    return list(metadata.entry_points(group=GROUP))


def parse_url(url: str, options: Mapping[str, str] | None = None) -> Spec:
    """The parts of a provider's URL. `options` are added to those behind its `?`."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ValueError(f"{url!r} names no host: {error}") from None
    given = {**(options or {}), **dict(parse_qsl(parts.query, keep_blank_values=True))}
    spec = Spec(parts.scheme, url, parts.netloc + parts.path, None, given)
    return with_gpu(spec, parts.netloc) if parts.scheme in _NAME_A_GPU else spec


def with_gpu(spec: Spec, gpu: str) -> Spec:
    """With the GPU type of this name; `auto` is the cheapest with the `memory` of the options."""
    if gpu != "auto":
        chosen = GPUType.parse(gpu)
    elif "memory" in spec.options:
        chosen = choose_gpu(spec.options["memory"]).gpu
    else:
        raise ValueError(
            f"{spec.url!r} must say how much memory: {spec.provider}://auto?memory=30GiB"
        )
    return replace(spec, host="", gpu=chosen)
