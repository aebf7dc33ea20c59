"""The Modal provider: `modal://H100` runs the server in a sandbox of Modal with this GPU.

The server listens on a port that Modal passes on as it is; our own TLS, with the certificate's pin,
goes from end to end. The token is in a secret of the sandbox. Needs Modal's SDK:
`pip install 'torch-remote[modal]'`. `modal://auto?memory=30GiB` chooses the GPU.

Options, behind `?` in the URL or in the configuration file:

    app                 the Modal app, `torch-remote` by default
    num_gpus            GPUs of the machine: so many devices
    cpu, ram            cores, and memory in MiB
    cloud, region       where, as for Sandbox.create
    idle, lease, lifetime, wait: docs/providers.md
"""

from __future__ import annotations

import importlib.util
import os
import re
import secrets
import shlex
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch

from torch_remote_execution import modal_app

from .. import _running
from .._errors import ConnectionError
from .._gpus import gpu_facts, prices_date
from .._machines import present_server_path
from . import Endpoint, Spec, common, grammar
from .ssh_install import start_script

OPTIONS = (
    *("app", "cloud", "cpu", "device", "idle", "lease", "lifetime"),
    *("memory", "num_gpus", "ram", "region", "wait"),
)
TAG = {"torch-remote": "server"}  # of every sandbox of this provider
APPS = (modal_app.APP_NAME, "torch-modal-extension")  # the second is torch_modal's
PORT = 4711
FOLDER = "/opt/torch-remote"
IMAGE_PATIENCE_S = 1800  # the first time Modal builds the image
CALL_PATIENCE_S = 60  # of every other call of the SDK

# The token is not in the environment of the server, which a client could ask for.
_RUN = (
    'umask 077; printf %s "$TORCH_REMOTE_TOKEN" >"$HOME/torch-remote-token"; '
    'unset TORCH_REMOTE_TOKEN; exec {command} --token-file "$HOME/torch-remote-token" 2>&1'
)

# What Modal says, and what to do about it.
ADVICE = (
    (
        r"AuthError|unauthenticated|token missing",
        "run `modal token new`, or set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET",
    ),
    (
        r"ResourceExhausted|quota|spend limit|billing|budget",
        "raise the limit of your workspace in Modal's settings, or stop machines: "
        "`torch-remote ps`, `modal container list`",
    ),
    (
        r"image build|ImageBuildError",
        "read the build's log in Modal's dashboard; the image is in "
        "torch_remote_execution/modal_app.py",
    ),
    (
        r"no machine within|capacity",
        "Modal has no such GPU free: wait longer with wait=1h, or choose another type",
    ),
    (r"PermissionDenied", "your token may not start sandboxes: ask the workspace's owner"),
    (
        r"nothing answers|ConnectionError|did not answer",
        "check the network; https://status.modal.com says whether Modal works",
    ),
    (
        r"was taken away|has ended|lifetime is over",
        "connect again and go on from your last checkpoint",
    ),
    (r"InvalidError|gpu", "check the options of the URL: docs/providers.md"),
)


def is_configured() -> bool:
    """Whether Modal's SDK is installed and a token is there. Imports nothing."""
    if importlib.util.find_spec("modal") is None:
        return False
    file = Path(os.environ.get("MODAL_CONFIG_PATH") or Path.home() / ".modal.toml")
    return bool(os.environ.get("MODAL_TOKEN_ID")) or file.exists()


def launch(spec: Spec) -> Endpoint:
    common.check_options(spec, *OPTIONS)
    if spec.gpu is None:
        raise ValueError(f"{spec.url} names no GPU type: modal://H100")
    gpu = modal_app.gpu_spec(spec.gpu.value)
    count = common.number(spec, "num_gpus", 1, most=8) or 1
    patience_s = common.seconds(spec, "wait", common.WAIT)
    serve = _serve_command(spec)
    resources = _resources(spec)
    sdk = _sdk(spec.url)
    tell = common.Progress(spec)
    price = next(each.usd_per_hour for each in gpu_facts() if each.gpu == spec.gpu) * count
    ends = common.who_ends(spec, "machine")
    tell("starts", f"{price:.2f} USD an hour by the list of {prices_date()}; {ends}")
    app, image = _prepare(spec, sdk, tell)
    token = secrets.token_hex(32)
    options: dict[str, Any] = {
        "app": app,
        "image": image,
        "name": spec.label,
        "gpu": gpu if count == 1 else f"{gpu}:{count}",
        "secrets": [sdk.Secret.from_dict({"TORCH_REMOTE_TOKEN": token})],
        "unencrypted_ports": [PORT],
        "timeout": common.seconds(spec, "lifetime", common.LIFETIME),
        "tags": TAG,
        **resources,
    }
    sandbox = _call(
        spec.url,
        CALL_PATIENCE_S,
        lambda: sdk.Sandbox.create("sh", "-c", _RUN.format(command=serve), **options),
        undo=lambda late: late.terminate(),
    )
    with common.ending_on_failure(spec, sandbox.terminate):
        made = Endpoint(
            spec.url,
            token,
            handle=sandbox.object_id,
            ends=ends,
            stays=True,
            usd_per_hour=price,
        )
        _running.note(spec, made)
        host, port = _wait_for_port(spec, sdk, sandbox, tell, patience_s)
        tell("starting")
        pin = _call(spec.url, patience_s, lambda: _read_pin(sandbox))
        tell("connecting")
        url = f"tls://{host}:{port}?pin={pin}"
    return replace(made, url=url)


def _serve_command(spec: Spec) -> str:
    listen = Spec(spec.provider, spec.url, options={**spec.options, "command": _program()})
    return shlex.join(common.serve_command(listen, "--listen", f"tls://0.0.0.0:{PORT}"))


def _program() -> str:
    return f"{FOLDER}/torch-remote"


def _resources(spec: Spec) -> dict[str, Any]:
    names = ("cloud", "region")
    grammar.check_options(spec, grammar.WORD, *names)
    given: dict[str, Any] = {each: spec.options[each] for each in names if each in spec.options}
    if "cpu" in spec.options:
        given["cpu"] = _cores(spec)
    if "ram" in spec.options:
        given["memory"] = common.number(spec, "ram", 0, most=1 << 24)
    return given


def _cores(spec: Spec) -> float:
    text = spec.options["cpu"]
    if not re.fullmatch(r"\d+(\.\d+)?", text) or float(text) == 0:
        raise ValueError(f"{spec.url}: cpu={text} must be a number of cores, such as 4 or 0.5")
    return float(text)


def _sdk(what: str) -> Any:
    """Modal's SDK, if it is installed, has a token, and its service can be reached."""
    if importlib.util.find_spec("modal") is None:
        raise ConnectionError(
            f"{what}: Modal's SDK is missing. What to do: pip install 'torch-remote[modal]'"
        )
    if not is_configured():
        raise ConnectionError(_advise(what, "AuthError: there is no token for Modal"))
    try:
        import modal
        from modal.config import config
    except ImportError as error:
        raise ConnectionError(
            f"{what}: Modal's SDK cannot be imported: {error}. What to do: "
            "pip install --force-reinstall 'torch-remote[modal]'"
        ) from error
    server = urlsplit(config["server_url"])
    if server.hostname:
        port = server.port or (443 if server.scheme == "https" else 80)
        common.check_reachable(what, server.hostname, port)
    return modal


def _prepare(spec: Spec, sdk: Any, tell: common.Progress) -> tuple[Any, Any]:
    app = _call(
        spec.url,
        CALL_PATIENCE_S,
        lambda: modal_app.make_app(spec.options.get("app", modal_app.APP_NAME)),
    )
    tell("image", "Modal builds it if it is new, which takes minutes")
    with tempfile.TemporaryDirectory() as folder:
        start = Path(folder) / "torch-remote"
        start.write_text(start_script("python3"))
        server = str(present_server_path())
        programs = {f"{FOLDER}/torch-remote-server": server, _program(): str(start)}
        image = modal_app.make_image(torch.__version__.partition("+")[0], programs=programs)
        return app, _call(spec.url, IMAGE_PATIENCE_S, lambda: image.build(app))


def _wait_for_port(
    spec: Spec, sdk: Any, sandbox: Any, tell: common.Progress, patience_s: int
) -> tuple[str, int]:
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        tell("queued", f"sandbox {sandbox.object_id}")
        ended = _call(spec.url, CALL_PATIENCE_S, sandbox.poll)
        if ended is not None:
            raise ConnectionError(_advise(spec.url, _how_it_ended(ended)))
        left_s = max(1, min(20, int(end - time.monotonic())))
        try:
            tunnels = _call(spec.url, CALL_PATIENCE_S, partial(sandbox.tunnels, timeout=left_s))
        except _QueuedError:
            continue
        host, port = tunnels[PORT].tcp_socket
        return str(host), int(port)
    raise ConnectionError(_advise(spec.url, f"no machine within {patience_s} s"))


def _read_pin(sandbox: Any) -> str:
    """From the line that the server prints when it is ready."""
    said = ""
    for piece in sandbox.stdout:
        said += piece
        found = re.search(r"listening on \S+[?&]pin=([\w-]+)\s", said)
        if found is not None:
            return found[1]
    raise RuntimeError(f"the server in the sandbox has ended: {common.last_words(said)}")


class _QueuedError(Exception):
    """The sandbox has no machine yet."""


def _call(
    what: str,
    patience_s: float,
    function: Callable[[], Any],
    undo: Callable[[Any], object] | None = None,
) -> Any:
    """Calls the SDK, with a limit of time; its errors become one sentence."""
    try:
        return common.within(patience_s, "Modal did not answer", function, undo)
    except Exception as error:
        if type(error).__name__ == "SandboxTimeoutError":
            raise _QueuedError from error
        words = f"{type(error).__name__}: {error}"
        raise ConnectionError(_advise(what, words)) from error


def _advise(what: str, words: str) -> str:
    return common.advise(what, words, ADVICE, "Modal failed")


def _how_it_ended(returncode: int) -> str:
    if returncode == 124:
        return "the sandbox's lifetime is over"
    if returncode == 137:
        return "the sandbox was taken away: Modal has preempted it, or somebody has ended it"
    return f"the server in the sandbox has ended with status {returncode}"


def _find(endpoint: Endpoint) -> Any:
    what = _named(endpoint)
    sdk = _sdk(what)
    return _call(what, CALL_PATIENCE_S, lambda: sdk.Sandbox.from_id(endpoint.handle))


def _named(endpoint: Endpoint) -> str:
    return f"Modal's sandbox {endpoint.handle}"


def explain(endpoint: Endpoint, error: str) -> str:
    """How the sandbox has ended; empty if it runs."""
    now = state(endpoint)
    return "" if now == "running" else _advise(_named(endpoint), now)


def state(endpoint: Endpoint) -> str:
    try:
        ended = _call(_named(endpoint), CALL_PATIENCE_S, _find(endpoint).poll)
    except ConnectionError as error:
        if _is_gone(error):
            return "Modal has no such sandbox: it has ended"
        raise
    return "running" if ended is None else _how_it_ended(ended)


def status(endpoint: Endpoint) -> dict[str, str]:
    price = f"{endpoint.usd_per_hour:.2f}" if endpoint.usd_per_hour else "unknown"
    return {"provider": "modal", "sandbox": endpoint.handle, "usd_per_hour": price}


def logs(endpoint: Endpoint) -> str:
    """What the server has printed. A running one is read for some seconds."""
    sandbox = _find(endpoint)
    pieces: list[str] = []

    def read() -> None:
        for piece in sandbox.stdout:
            pieces.append(piece)

    with suppress(TimeoutError):
        common.within(3, "", read)
    return "".join(pieces)


def stop(endpoint: Endpoint) -> None:
    what = f"{_named(endpoint)} may go on"
    try:
        _call(what, CALL_PATIENCE_S, _find(endpoint).terminate)
    except ConnectionError as error:
        if not _is_gone(error):
            raise


def _is_gone(error: ConnectionError) -> bool:
    return type(error.__cause__).__name__ == "NotFoundError"


def machines() -> list[Endpoint]:
    """The sandboxes of this workspace that this provider has launched, also from elsewhere."""
    if not is_configured():
        return []
    modal = _sdk("modal://")

    def find() -> list[Endpoint]:
        found: list[Endpoint] = []
        for name in APPS:
            with suppress(modal.exception.NotFoundError):
                app = modal.App.lookup(name)
                running = modal.Sandbox.list(app_id=app.app_id, tags=TAG)
                ids = [each.object_id for each in running]
                found += [Endpoint(f"modal://{one}", handle=one, stays=True) for one in ids]
        return found

    found: list[Endpoint] = _call("modal://", CALL_PATIENCE_S, find)
    return found
