"""The RunPod provider: `runpod://H100?image=IMAGE` runs the server in a pod of RunPod.

Untried on the real service: it is written from RunPod's documents of its REST interface and tested
with a local stand-in for that. Needs RUNPOD_API_KEY and an image that has torch-remote
(deploy/Dockerfile). Our TLS, with a pinned certificate that is made here, goes from end to end.

Options, behind `?` in the URL or in the configuration file:

    image       the image to run; it has torch-remote
    num_gpus    GPUs of the pod: so many devices
    disk        GB of the container's disk, 40 by default
    command, device, idle, lease, lifetime, wait: docs/providers.md
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from .. import _running
from .._errors import ConnectionError
from .._gpus import names_of_gpus
from .._machines import present_server_path
from . import Endpoint, Spec, common, grammar

OPTIONS = (*common.SERVE_OPTIONS, "disk", "image", "memory", "num_gpus")
PORT = 4711
_PATIENCE_S = 20  # of one request
GPUS = names_of_gpus("runpod")

# RunPod starts a pod whose program has ended again, and goes on to charge: the pod deletes itself.
# The key that RunPod gives the pod for this is not in the environment of the server.
_RUN = (
    'umask 077; printf %s "$TORCH_REMOTE_TOKEN" >"$HOME/token"; '
    'printf %s "$TORCH_REMOTE_TLS" >"$HOME/tls.pem"; unset TORCH_REMOTE_TOKEN TORCH_REMOTE_TLS; '
    'env -u RUNPOD_API_KEY {command} --token-file "$HOME/token" --cert "$HOME/tls.pem"; '
    'runpodctl remove pod "$RUNPOD_POD_ID"'
)

# What RunPod says, and what to do about it.
ADVICE = (
    (r"401|Unauthorized|no key", "make an API key in RunPod's settings and set RUNPOD_API_KEY"),
    (r"balance|funds|quota|limit|402", "add credit to your account, or end pods: torch-remote ps"),
    (
        r"no instances|not available|capacity|no longer any|no server within",
        "RunPod has no such GPU free: use another type, or try later",
    ),
    (r"image|manifest", "check the name of image=NAME and that RunPod may pull it"),
    (r"404|not found|EXITED|TERMINATED", "the pod is gone; connect again and go on from your "
     "last checkpoint"),
    (r"nothing answers|timed out|did not answer", "check the network and https://uptime.runpod.io"),
)  # fmt: skip


def launch(spec: Spec) -> Endpoint:
    common.check_options(spec, *OPTIONS)
    if spec.gpu is None or spec.gpu.value not in GPUS:
        gpu = spec.gpu.value if spec.gpu else ""
        raise ValueError(f"Invalid GPU type '{gpu}' for RunPod. Valid types: {[*GPUS]}")
    if "image" not in spec.options:
        raise ValueError(f"{spec.url} needs image=NAME, which has torch-remote: deploy/Dockerfile")
    patience_s = common.seconds(spec, "wait", common.WAIT)
    token = secrets.token_hex(32)
    request = _pod(spec, token)
    _ask(spec.url, "GET", "/pods")  # the key and the network are tried before anything is made
    certificate, pin = _make_identity()
    request["env"]["TORCH_REMOTE_TLS"] = certificate
    tell = common.Progress(spec)
    ends = common.who_ends(spec, "pod")
    tell("queued", ends)
    try:
        pod = common.within(
            _PATIENCE_S + 5,
            f"RunPod did not answer within {_PATIENCE_S + 5} s",
            lambda: _ask(spec.url, "POST", "/pods", request),
            undo=lambda late: _ask(spec.url, "DELETE", f"/pods/{_quoted(late['id'])}"),
        )
    except TimeoutError as error:
        raise ConnectionError(_advise(spec.url, str(error))) from error
    price = float(pod.get("costPerHr") or 0) or None
    made = Endpoint(spec.url, token, handle=pod["id"], ends=ends, stays=True, usd_per_hour=price)
    with common.ending_on_failure(spec, lambda: stop(made)):
        _running.note(spec, made)
        tell("starting", f"pod {pod['id']}, {price or 'unknown'} USD an hour")
        host, port = _wait(spec, pod["id"], patience_s)
        tell("connecting")
    url = f"tls://{host}:{port}?pin={pin}"
    return Endpoint(url, token, handle=made.handle, ends=ends, stays=True, usd_per_hour=price)


def _pod(spec: Spec, token: str) -> dict[str, Any]:
    assert spec.gpu is not None
    serve = shlex.join(common.serve_command(spec, "--listen", f"tls://0.0.0.0:{PORT}"))
    return {
        "name": spec.label,
        "imageName": spec.options["image"],
        "gpuTypeIds": GPUS[spec.gpu.value],
        "gpuCount": common.number(spec, "num_gpus", 1) or 1,
        "containerDiskInGb": common.number(spec, "disk", 40, most=2000),
        "ports": [f"{PORT}/tcp"],
        "env": {"TORCH_REMOTE_TOKEN": token},
        "dockerEntrypoint": ["sh", "-c"],
        "dockerStartCmd": [_RUN.format(command=serve)],
    }


def _make_identity() -> tuple[str, str]:
    """A certificate with its key, and its pin. Our own server makes them when it first starts."""
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen(
            [
                str(present_server_path()),
                "--listen",
                "tls://127.0.0.1:0",
                "--token-file",
                f"{folder}/token",
            ],
            env={**os.environ, "XDG_STATE_HOME": folder},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert server.stdout is not None
            said = re.search(r"[?&]pin=([\w-]+)", server.stdout.readline())
        finally:
            server.kill()
            server.communicate()
        if said is None:
            raise RuntimeError("this machine's torch-remote-server makes no certificate")
        return (Path(folder) / "torch-remote" / "tls.pem").read_text(), said[1]


def _wait(spec: Spec, pod: str, patience_s: int) -> tuple[str, int]:
    """The address, when the server listens."""
    end = time.monotonic() + patience_s
    words = ""
    while time.monotonic() < end:
        told = _ask(spec.url, "GET", f"/pods/{_quoted(pod)}")
        if told.get("desiredStatus") in ("EXITED", "TERMINATED"):
            raise ConnectionError(_advise(spec.url, f"the pod is {told['desiredStatus']}"))
        host, port = told.get("publicIp"), (told.get("portMappings") or {}).get(str(PORT))
        if port and grammar.HOST.accepts(str(host)):
            try:
                common.check_reachable(spec.url, host, int(port))
                return str(host), int(port)
            except ConnectionError as error:
                words = str(error)
        time.sleep(0.5)
    raise ConnectionError(_advise(spec.url, f"no server within {patience_s} s {words}"))


def _ask(what: str, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    key = os.environ.get("RUNPOD_API_KEY")
    if not key:
        raise ConnectionError(_advise(what, "RunPod: there is no key"))
    request = urllib.request.Request(
        os.environ.get("RUNPOD_REST_URL", "https://rest.runpod.io/v1") + path,
        json.dumps(body).encode() if body is not None else None,
        {"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
        method=method,
    )
    try:
        with urllib.request.urlopen(request, timeout=_PATIENCE_S) as answer:
            text = answer.read().decode()
            return json.loads(text) if text else {}
    except urllib.error.HTTPError as error:
        words = f"RunPod: {error.code} {error.reason} {error.read().decode(errors='replace')}"
        raise ConnectionError(_advise(what, words)) from error
    except OSError as error:
        raise ConnectionError(_advise(what, f"nothing answers: {error}")) from error


def _quoted(pod: str) -> str:
    return urllib.parse.quote(pod, safe="")


def _advise(what: str, words: str) -> str:
    return common.advise(what, words, ADVICE, "RunPod failed")


def explain(endpoint: Endpoint, error: str) -> str:
    now = state(endpoint)
    return "" if now == "running" else _advise("RunPod", now)


def state(endpoint: Endpoint) -> str:
    try:
        told = _ask("RunPod", "GET", f"/pods/{_quoted(endpoint.handle)}")
    except ConnectionError as error:
        return str(error)
    now = str(told.get("desiredStatus"))
    return "running" if now == "RUNNING" else f"the pod {endpoint.handle} is {now}"


def status(endpoint: Endpoint) -> dict[str, str]:
    price = f"{endpoint.usd_per_hour:.2f}" if endpoint.usd_per_hour else "unknown"
    return {"provider": "runpod", "pod": endpoint.handle, "usd_per_hour": price}


def logs(endpoint: Endpoint) -> str:
    return f"(RunPod's web page shows the log of the pod {endpoint.handle})"


def stop(endpoint: Endpoint) -> None:
    try:
        _ask("RunPod", "DELETE", f"/pods/{_quoted(endpoint.handle)}")
    except ConnectionError as error:
        if getattr(error.__cause__, "code", 0) != 404:  # else it has deleted itself
            raise


def machines() -> list[Endpoint]:
    """The pods that this provider has launched, also from other machines."""
    if not os.environ.get("RUNPOD_API_KEY"):
        return []
    pods = [
        one
        for one in _ask("RunPod", "GET", "/pods")
        if one["name"].startswith(_running.LABELS_BEGIN)
    ]
    return [Endpoint(f"runpod://{one['id']}", handle=one["id"], stays=True) for one in pods]
