"""The SkyPilot provider: `sky://H100` launches a cluster with `sky launch` and reaches it by ssh.

Untried on a real cloud: it is written from SkyPilot's documents and tested with a stand-in for its
command. Needs `pip install skypilot` with your cloud's extra, and `sky check` to be content.

Options, behind `?` in the URL or in the configuration file:

    infra       where, as for `sky launch --infra`: aws, gcp/us-central1, …
    num_gpus    GPUs of the machine: so many devices
    spot        1: a cheaper machine that the cloud may take away
    python      the machine's Python, `python3` by default; torch is installed into it
    idle, lease, lifetime, wait: docs/providers.md
"""

from __future__ import annotations

import re
import shlex
import shutil

import torch

from .. import _running
from .._errors import ConnectionError
from .._gpus import names_of_gpus
from . import Endpoint, Spec, common, grammar, ssh_install

OPTIONS = ("device", "idle", "infra", "lease", "lifetime", "memory", "num_gpus", "python", "spot")
GPUS = names_of_gpus("sky")  # the others have the names that we use
_CONNECT_S = 20  # a machine that has just started may be slow
_WAIT = "30m"

# What SkyPilot or the cloud says, and what to do about it.
ADVICE = (
    (
        r"no cloud access|not enabled|credential|No enabled|sky check",
        "set up your cloud and run `sky check`",
    ),
    (r"quota", "ask your cloud for a higher quota, or use another infra=NAME"),
    (
        r"ResourcesUnavailable|Failed to acquire|no resource satisfying|capacity|did not answer",
        "the cloud has no such GPU free: use another infra=NAME or type, or wait with wait=1h",
    ),
    (r"setup failed|pip", "read `sky logs`; torch could not be installed on the machine"),
    (
        r"preempted|terminated|not found|STOPPED|INIT",
        "the machine was taken away; connect again and go on from your last checkpoint",
    ),
)
_tool = common.Tool(ADVICE, "SkyPilot failed", patience_s=120)  # launch has its own patience


def launch(spec: Spec) -> Endpoint:
    common.check_options(spec, *OPTIONS, "wait")
    grammar.check_options(spec, grammar.WORD, "infra")
    if spec.gpu is None:
        raise ValueError(f"{spec.url} names no GPU type: sky://H100")
    patience_s = common.seconds(spec, "wait", _WAIT)
    serve = shlex.join(common.serve_command(spec, "--stdio")[1:])
    common.need_program(spec, "sky", "SkyPilot: pip install 'skypilot[aws]' or another cloud's")
    tell = common.Progress(spec)
    ends = common.who_ends(spec, "machine")
    made = Endpoint(spec.url, handle=spec.label, ends=ends, stays=True)
    _running.note(spec, made)
    with common.ending_on_failure(spec, lambda: stop(made)):
        tell("queued", f"`sky launch` chooses a cloud and says its price; {ends}")
        _tool.ask(spec.url, "sky", *_launch_words(spec), patience_s=patience_s)
        tell("starting", "copies the server")
        patient = ["-o", f"ConnectTimeout={_CONNECT_S}"]
        ssh = ["ssh", "-T", "-o", "BatchMode=yes", *patient, "--", spec.label]
        python = spec.options.get("python", "python3")
        program = ssh_install.install(ssh, spec.label, python, _CONNECT_S)
        command = common.logged([*ssh, f"exec {program} {serve}"], spec.label)
        tell("connecting")
    return Endpoint(spec.url, None, command, spec.label, ends, stays=True)


def _launch_words(spec: Spec) -> list[str]:
    assert spec.gpu is not None
    gpu = GPUS.get(spec.gpu.value, spec.gpu.value)
    minutes = -(-common.seconds(spec, "idle", common.IDLE) // 60)
    words = [
        "launch",
        "-y",
        "-c",
        spec.label,
        "--gpus",
        f"{gpu}:{common.number(spec, 'num_gpus', 1)}",
    ]
    words += ["--idle-minutes-to-autostop", str(minutes), "--down"]
    if "infra" in spec.options:
        words += ["--infra", spec.options["infra"]]
    if spec.options.get("spot", "0") not in ("", "0", "no"):
        words.append("--use-spot")
    python = shlex.quote(spec.options.get("python", "python3"))
    version = torch.__version__.partition("+")[0]
    return [*words, f"{python} -m pip install --quiet torch=={version}"]


def explain(endpoint: Endpoint, error: str) -> str:
    """What ssh has printed, and what has become of the cluster."""
    return _tool.explain(endpoint, endpoint.handle, state(endpoint))


def state(endpoint: Endpoint) -> str:
    words = ["sky", "status", "--refresh", endpoint.handle]
    done = common.run_program(words, _tool.patience_s)
    if done.returncode != 0 and "not found" not in done.stderr:
        return f"unknown: {common.last_words(done.stderr or done.stdout)}"
    line = next((each for each in done.stdout.splitlines() if endpoint.handle in each), "not found")
    return "running" if re.search(r"\bUP\b", line) else common.last_words(line)


def status(endpoint: Endpoint) -> dict[str, str]:
    return {"provider": "sky", "cluster": endpoint.handle}


def logs(endpoint: Endpoint) -> str:
    return _running.read_log(endpoint.handle)


def stop(endpoint: Endpoint) -> None:
    done = common.run_program(["sky", "down", "-y", endpoint.handle], _tool.patience_s)
    said = done.stderr or done.stdout
    if done.returncode != 0 and "not found" not in said:
        raise ConnectionError(_tool.advise(f"{endpoint.handle} may go on", said))
    _running.remove_log(endpoint.handle)


def machines() -> list[Endpoint]:
    """The clusters that this provider has launched, also from other machines."""
    if shutil.which("sky") is None:
        return []
    told = _tool.ask("sky://", "sky", "status")
    names = re.findall(rf"^({_running.LABELS_BEGIN}\S+)", told, re.M)
    return [Endpoint(f"sky://{name}", handle=name, stays=True) for name in names]
