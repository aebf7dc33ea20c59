"""The Ray provider: `ray://` runs servers as actors of a Ray cluster, each with its GPU.

`ray://` uses the cluster that this process is connected to, or that of RAY_ADDRESS, or the one on
this machine; `ray://host:port` that at this address. The client's connection goes directly to each
server, with TLS and a token, and not through Ray. Needs `pip install 'torch-remote[ray]'`, and
torch-remote on the nodes.

Options, behind `?` in the URL or in the configuration file:

    num_gpus    how many servers, each with one GPU: so many devices; `0` is one server without
    gpu         Ray's accelerator_type, such as `A100`
    strategy    PACK (the default), SPREAD, STRICT_PACK or STRICT_SPREAD: over which nodes
    cpus        of each server, 1 by default
    command, device, idle, lease, lifetime, wait: docs/providers.md
"""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import socket
import sys
import time
from contextlib import suppress
from typing import Any

from torch_remote_execution import ray_server

from .. import _running
from .._errors import ConnectionError
from . import Endpoint, Spec, common, grammar

OPTIONS = (*common.SERVE_OPTIONS, "cpus", "gpu", "num_gpus", "strategy")
STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
NAMESPACE = ray_server.NAMESPACE
INIT_PATIENCE_S = 60  # Ray itself tries for much longer
START_PATIENCE_S = 180  # a server loads torch
PING_PATIENCE_S = 8  # for all actors to answer; Ray may not have noticed that one has died

# What Ray says, and what to do about it.
ADVICE = (
    (
        r"ha(s|ve) died|is dead|was removed|preempt",
        "connect again and go on from your last checkpoint",
    ),
    (
        r"not find any running Ray|nothing answers|did not answer|ConnectionError|GCS",
        "start a cluster with `ray start --head`, or name one: ray://host:6379 or RAY_ADDRESS",
    ),
    (r"token|unauthenticated", "set RAY_AUTH_TOKEN_PATH to the cluster's token file"),
    (
        r"no room within|the cluster has",
        "wait longer with wait=1h, ask for fewer with num_gpus=N, or add nodes",
    ),
    (
        r"No such file|not found|not installed",
        "torch-remote is not on the node's PATH: name it with command=/path/to/torch-remote",
    ),
)


# The nodes of a cluster may be in several networks of one organisation.
PRIVATE = "10.0.0.0/8,172.16.0.0/12,192.168.0.0/16,100.64.0.0/10,fc00::/7,127.0.0.0/8,::1"


def launch(spec: Spec) -> Endpoint:
    common.check_options(spec, *OPTIONS)
    if spec.host.strip("/"):
        grammar.check(spec, "the cluster", spec.host.strip("/"), grammar.HOST)
    count = common.number(spec, "num_gpus", 1)
    patience_s = common.seconds(spec, "wait", common.WAIT)
    if spec.options.get("strategy", "PACK") not in STRATEGIES:
        raise ValueError(f"{spec.url}: strategy= is one of {', '.join(STRATEGIES)}")
    peers = [f"--peers={PRIVATE}"] if count > 1 else []  # they copy and reduce among themselves
    serve = common.serve_command(spec, *peers)
    tell = common.Progress(spec)
    ray = _connect(spec.url, spec.host.strip("/"))
    bundle = _bundle(spec, ray, count)
    ends = common.who_ends(spec, "machine")
    address = ray.get_runtime_context().gcs_address
    handle = _handle(address, spec.label, max(1, count))
    names = json.loads(handle)[2]
    made = Endpoint(spec.url, handle=handle, ends=ends, stays=True)
    with common.ending_on_failure(spec, lambda: stop(made)):
        _running.note(spec, made)
        tell("queued", ends)
        group = _reserve(spec, ray, bundle, len(names), patience_s)
        tell("starting")
        tokens = [secrets.token_hex(32) for _ in names]
        urls = _start(spec, ray, group, bundle, names, serve, tokens)
        tell("connecting")
    servers = zip(urls, tokens, strict=True)
    made_of = [Endpoint(url, token, handle=handle) for url, token in servers]
    return common.machine_of(made_of, ends, stays=True)


def _connect(what: str, address: str) -> Any:
    """Ray, connected to the cluster; within a minute or not at all."""
    if importlib.util.find_spec("ray") is None:
        raise ConnectionError(
            f"{what}: Ray is missing. What to do: pip install 'torch-remote[ray]'"
        )
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    if ray.is_initialized() and not _leave_other_cluster(what, ray, address):
        return ray
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        try:
            common.check_reachable(what, host, int(port))
        except ConnectionError as error:
            raise ConnectionError(_advise(what, str(error).partition(": ")[2])) from error
    try:
        common.within(
            INIT_PATIENCE_S,
            f"Ray did not answer within {INIT_PATIENCE_S} s",
            lambda: ray.init(
                address or os.environ.get("RAY_ADDRESS") or "auto",
                namespace=NAMESPACE,
                log_to_driver=False,
                logging_level="error",
            ),
        )
    except Exception as error:
        raise ConnectionError(_advise(what, f"{type(error).__name__}: {error}")) from error
    _connected.append(ray.get_runtime_context().gcs_address)
    return ray


def _leave_other_cluster(what: str, ray: Any, address: str) -> bool:
    """Whether Ray was connected to another cluster and is no more. Raises if it is still needed.

    Ray connects a process to one cluster at a time. `torch-remote ps` may ask several in turn.
    """
    here = ray.get_runtime_context().gcs_address
    if not address or _resolved(address) == _resolved(here):
        return False
    if _owned or here not in _connected:
        raise ConnectionError(
            f"{what}: this process uses the Ray cluster at {here}, and Ray allows one for each "
            "process. What to do: use this machine in another process"
        )
    ray.shutdown()
    return True


def _resolved(address: str) -> tuple[str, str]:
    host, _, port = address.rpartition(":")
    try:
        return socket.gethostbyname(host), port
    except OSError:
        return host, port


def _bundle(spec: Spec, ray: Any, count: int) -> dict[str, float]:
    """What each server needs. Raises at once if the cluster can never give that."""
    there = ray.cluster_resources()
    bundle: dict[str, float] = {"CPU": common.number(spec, "cpus", 1)}
    if count:
        bundle["GPU"] = 1
    gpu = spec.options.get("gpu") or (spec.gpu.value if spec.gpu else "")
    if gpu:
        prefix = "accelerator_type:"
        names = sorted(
            each.removeprefix(prefix)
            for each in there
            if each.startswith(prefix) and "_group_" not in each  # of placement groups
        )
        if gpu not in names:
            raise ValueError(f"Invalid GPU type '{gpu}'. Valid types: {names}")
        bundle[f"{prefix}{gpu}"] = 0.001
    if there.get("GPU", 0) < count:
        words = f"{count} GPUs are wanted and the cluster has {there.get('GPU', 0):.0f}"
        raise ConnectionError(_advise(spec.url, words))
    return bundle


def _reserve(spec: Spec, ray: Any, bundle: dict[str, float], count: int, patience_s: int) -> Any:
    """A placement group; one that gets no room is removed."""
    from ray.util.placement_group import placement_group

    group = placement_group(
        [bundle] * count,
        strategy=spec.options.get("strategy", "PACK"),
        name=spec.label,
        lifetime="detached" if spec.keep else None,
    )
    end = time.monotonic() + patience_s
    while not group.wait(timeout_seconds=1):
        if time.monotonic() > end:
            free = ray.available_resources().get("GPU", 0)
            words = f"no room within {patience_s} s: {count} servers are wanted and "
            raise ConnectionError(_advise(spec.url, f"{words}{free:.0f} GPUs are free"))
    return group


def _start(
    spec: Spec,
    ray: Any,
    group: Any,
    bundle: dict[str, float],
    names: list[str],
    serve: list[str],
    tokens: list[str],
) -> list[str]:
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    kind = ray_server.actor_class()
    actors = [
        kind.options(
            name=name,
            namespace=NAMESPACE,
            num_cpus=bundle["CPU"],
            num_gpus=bundle.get("GPU", 0),
            lifetime="detached" if spec.keep else None,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, index),
        ).remote()
        for index, name in enumerate(names)
    ]
    if not spec.keep:
        _owned[spec.label] = actors  # an actor that nobody holds ends
    started = [
        each.start.remote(serve, token, names, index)
        for index, (each, token) in enumerate(zip(actors, tokens, strict=True))
    ]
    try:
        answers = ray.get(started, timeout=START_PATIENCE_S)
    except Exception as error:
        raise ConnectionError(_advise(spec.url, f"{type(error).__name__}: {error}")) from error
    for url, words in answers:
        if not url:
            raise ConnectionError(_advise(spec.url, words))
    return [url for url, _ in answers]


_owned: dict[str, list[Any]] = {}  # by the label of their machine
_connected: list[str] = []  # the clusters that this module has connected to


def _advise(what: str, words: str) -> str:
    return common.advise(what, words, ADVICE, "Ray failed")


def _actors(endpoint: Endpoint) -> list[Any]:
    """The actors that still are, of whichever process."""
    address, _, names = json.loads(endpoint.handle)
    ray = _connect(endpoint.url, address)
    found = []
    for each in names:
        with suppress(ValueError):  # it has ended
            found.append(ray.get_actor(each, namespace=NAMESPACE))
    return found


def explain(endpoint: Endpoint, error: str) -> str:
    """Which actors have died, and why as Ray says; empty if all answer."""
    _, _, names = json.loads(endpoint.handle)
    living = _actors(endpoint)
    reasons = []
    end = time.monotonic() + PING_PATIENCE_S
    for asked in [each.log.remote() for each in living]:
        try:
            sys.modules["ray"].get(asked, timeout=max(0.1, end - time.monotonic()))
        except Exception as failure:
            reasons.append(" ".join(str(failure).split())[:300])
    dead = len(names) - len(living) + len(reasons)
    if dead == 0:
        return ""
    verb = "has" if dead == 1 else "have"
    return _advise("Ray", f"{dead} of {len(names)} actors {verb} died. {' '.join(reasons[:1])}")


def state(endpoint: Endpoint) -> str:
    _, _, names = json.loads(endpoint.handle)
    living = len(_actors(endpoint))
    if living == 0:
        return common.ENDED
    return "running" if living == len(names) else f"{living} of {len(names)} actors run"


def status(endpoint: Endpoint) -> dict[str, str]:
    address, _, names = json.loads(endpoint.handle)
    return {"provider": "ray", "cluster": address, "actors": " ".join(names)}


def logs(endpoint: Endpoint) -> str:
    """What the servers have printed to standard error."""
    import ray

    asked = [each.log.remote() for each in _actors(endpoint)]
    return "".join(ray.get(asked, timeout=10))


def stop(endpoint: Endpoint) -> None:
    if importlib.util.find_spec("ray") is None:
        raise ConnectionError(f"{endpoint.url} may go on: Ray is missing in this environment")
    import ray
    from ray.util.placement_group import get_placement_group, remove_placement_group

    _, label, _ = json.loads(endpoint.handle)
    if _owned.pop(label, None) is not None and not ray.is_initialized():
        return  # at exit Ray has ended the actors of this program before
    for each in _actors(endpoint):
        ray.kill(each)
    with suppress(ValueError):  # there is none
        remove_placement_group(get_placement_group(label))


def machines() -> list[Endpoint]:
    """The servers in the cluster of this machine, of `torch-remote up` from anywhere."""
    if importlib.util.find_spec("ray") is None or not os.environ.get("RAY_ADDRESS"):
        return []
    ray = _connect("ray://", "")
    address = ray.get_runtime_context().gcs_address
    servers: dict[str, list[str]] = {}  # by the name of their machine
    for each in ray.util.list_named_actors(all_namespaces=True):
        if each["namespace"] == NAMESPACE:
            servers.setdefault(each["name"].rpartition("-")[0], []).append(each["name"])
    return [
        Endpoint(f"ray://{one}", handle=_handle(address, one, len(names)), stays=True)
        for one, names in sorted(servers.items())
    ]


def _handle(address: str, label: str, count: int) -> str:
    return json.dumps([address, label, [f"{label}-{each}" for each in range(count)]])
