"""The ssh provider: `ssh://[user@]host[:port]` runs `torch-remote serve --stdio` on the host.

ssh's standard input and output are the connection, so no port, token or TLS is needed. The user's
own ssh configuration counts. ssh runs without a terminal: it cannot ask for a password. A lost
connection is resumed by running ssh again.

Options, behind `?` in the URL or in the configuration file:

    command   what to run on the host: `torch-remote` by default
    config    an ssh configuration file, as for `ssh -F`
    lease     how long the server waits for a lost client, `1m` by default
    timeout   how many seconds ssh may take to connect, 8 by default
    install   `1`: copies this machine's server to the host first and runs that; the host needs
              a `python3` (or `python=…`) with the same minor version of torch
"""

from __future__ import annotations

import shlex
import shutil
import tempfile
from pathlib import Path

from .. import _running
from . import Endpoint, Spec, grammar, ssh_install
from .ssh_errors import explain
from .ssh_words import CONNECT_S, OPTIONS, check, destination, quoted

__all__ = ["OPTIONS", "launch", "logs", "machines", "status", "stop"]


def launch(spec: Spec) -> Endpoint:
    """Makes ready to run ssh; the client runs it, again and again if need be."""
    check(spec.url, spec.host, spec.options)
    ssh = _ssh_command(spec)
    lease = grammar.check(spec, "lease=", spec.options.get("lease", "1m"), grammar.WORD)
    command = quoted(spec.options.get("command", "torch-remote"))
    if spec.options.get("install", "0") not in ("", "0", "no", "false"):
        python = spec.options.get("python", "python3")
        command = ssh_install.install(ssh, spec.host, python, _timeout(spec))
    serve = f"exec {command} serve --stdio --lease {shlex.quote(lease)}"
    if "device" in spec.options:
        device = grammar.check(spec, "device=", spec.options["device"], grammar.WORD)
        serve += f" --device {shlex.quote(device)}"
    folder = Path(tempfile.mkdtemp(prefix="torch-remote-ssh-"))
    log = folder / "log"
    log.touch(mode=0o600)

    def explained(error: str) -> str:
        _running.wait_for_log(log)
        return explain(spec.host, error, _running.read_end(log))

    return Endpoint(
        url=spec.url,
        command=_running.logged(log, (*ssh, serve)),
        handle=str(folder),
        ends="stop(), or the end of this process, ends its server; "
        f"if the connection is lost for {lease}, the server ends itself",
        explain=explained,
    )


def _ssh_command(spec: Spec) -> list[str]:
    if shutil.which("ssh") is None:
        raise RuntimeError(f"{spec.url}: there is no ssh on this machine; install OpenSSH's client")
    host, port = destination(spec.host) or ("", "")
    options = ["-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={_timeout(spec)}"]
    if "config" in spec.options:
        options += ["-F", str(Path(spec.options["config"]).expanduser())]
    if port:
        options += ["-p", port]
    return ["ssh", *options, "--", host]


def _timeout(spec: Spec) -> int:
    return int(spec.options.get("timeout", CONNECT_S))


def status(endpoint: Endpoint) -> dict[str, str]:
    return {"provider": "ssh"}


def logs(endpoint: Endpoint) -> str:
    return _running.read_end(Path(endpoint.handle) / "log")


def stop(endpoint: Endpoint) -> None:
    """The server ends with the session; only the log is left."""
    shutil.rmtree(endpoint.handle, ignore_errors=True)


def machines() -> list[Endpoint]:
    """None: a server runs only while its client does, which lists its own machines."""
    return []
