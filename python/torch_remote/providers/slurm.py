"""The Slurm provider: `srun … torch-remote serve --stdio` inside a job of its own.

`slurm://[partition]` submits a job that waits, and runs the servers in it as steps. The standard
input and output of srun are the connection. Untried on a real Slurm: tests use a stand-in.

Options, behind `?` in the URL or in the configuration file:

    gpu         the GPU's name as the cluster calls it, as in `--gpus=a100:4`
    num_gpus    of each node, 1 by default; 0 for none
    nodes       how many nodes: each is a server with its devices
    account, qos, constraint, cpus, memory    as for sbatch
    command, device, idle, lease, lifetime, wait: docs/providers.md
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import time

from .. import _running
from .._errors import ConnectionError
from . import Endpoint, Spec, common, grammar

_PASSED = {
    "account": "--account",
    "constraint": "--constraint",
    "cpus": "--cpus-per-task",
    "memory": "--mem",
    "qos": "--qos",
}
OPTIONS = (*common.SERVE_OPTIONS, *_PASSED, "gpu", "nodes", "num_gpus")
_DEAD = r"CANCELLED|FAILED|TIMEOUT|PREEMPTED|NODE_FAIL|OUT_OF_ME|BOOT_FAIL|DEADLINE|COMPLET"

# What Slurm says, and what to do about it.
ADVICE = (
    (
        r"PREEMPTED|NODE_FAIL|TIMEOUT|CANCELLED|job .* is gone",
        "the job was taken away; connect again and go on from your last checkpoint",
    ),
    (
        r"Unable to contact|Connection refused|did not answer",
        "check that this machine is one of the cluster's and that `sinfo` works",
    ),
    (
        r"Invalid account|Invalid qos|not permitted|Access.*denied|authentication",
        "check your account with `sacctmgr show user $USER`, and account=NAME and qos=NAME",
    ),
    (
        r"Invalid generic resource|Invalid gres",
        "the cluster has no GPU of that name: `sinfo -o %G` lists them; use gpu=NAME",
    ),
    (r"invalid partition", "`sinfo -s` lists the partitions: slurm://PARTITION"),
    (
        r"AssocGrp|QOSMax|QOSGrp|MaxJobs|limit",
        "your quota is used up: wait, or use another qos=NAME",
    ),
    (
        r"Resources|Priority|ReqNodeNotAvail|Nodes_required|configuration is not available",
        "no node has what the job needs free: wait longer with wait=2h, or ask for less",
    ),
    (
        r"torch-remote.*(not found|No such file)|(not found|No such file).*torch-remote",
        "torch-remote is not on the nodes' PATH: name it with command=/path/to/torch-remote",
    ),
)
_tool = common.Tool(ADVICE, "Slurm's command failed", patience_s=30)


def launch(spec: Spec) -> Endpoint:
    common.check_options(spec, *OPTIONS)
    grammar.check_options(spec, grammar.WORD, *_PASSED, "gpu")
    if spec.host.strip("/"):
        grammar.check(spec, "the partition", spec.host.strip("/"), grammar.WORD)
    common.need_program(spec, "sbatch", "Slurm's commands, or run this on the cluster's login node")
    patience_s = common.seconds(spec, "wait", common.WAIT)
    common.serve_command(spec)  # a wrong option is noticed before a job is submitted
    tell = common.Progress(spec)
    # Until sbatch has told the job's number, only its name is known, which no other job has.
    by_name = ("scancel", f"--name={spec.label}")
    what = f"the job {spec.label} may go on"
    with common.ending_on_failure(spec, lambda: _tool.ask(what, *by_name)):
        job = _tool.ask(spec.url, *_submission(spec)).strip().partition(";")[0]
        if not job.isdecimal():
            raise ConnectionError(f"{spec.url}: sbatch printed {job!r} where a number should be")
        made = _endpoint(spec, job)
        _running.note(spec, made)
        tell("queued", f"job {job}; {made.ends}")
        _wait(spec, job, tell, patience_s)
        tell("connecting")
    return made


def _submission(spec: Spec) -> list[str]:
    lifetime_s = common.seconds(spec, "lifetime", common.LIFETIME)
    words = ["sbatch", "--parsable", f"--job-name={spec.label}", "--output=/dev/null"]
    words += [f"--time={-(-lifetime_s // 60)}", "--no-requeue"]
    words += [f"--nodes={common.number(spec, 'nodes', 1) or 1}"]
    if spec.host.strip("/"):
        words.append(f"--partition={spec.host.strip('/')}")
    gpus = common.number(spec, "num_gpus", 1)
    if gpus:
        kind = f"{spec.options['gpu']}:" if "gpu" in spec.options else ""
        words.append(f"--gpus-per-node={kind}{gpus}")
    words += [f"{_PASSED[each]}={spec.options[each]}" for each in _PASSED if each in spec.options]
    return [*words, f"--wrap={common.idle_watch(spec)}"]


def _endpoint(spec: Spec, job: str) -> Endpoint:
    command = shlex.join(common.serve_command(spec, "--stdio"))
    # Slurm kills what is left of a step when its command ends, and a session must outlive a lost
    # connection: the step waits for it.
    mark = common.mark(spec)
    serve = f"{mark} {command}; while grep -qs '{mark}' /proc/[0-9]*/environ; do sleep 1; done"

    def step(node: int) -> Endpoint:
        words = ["srun", f"--jobid={job}", "--overlap", "--nodes=1", "--ntasks=1", "--unbuffered"]
        words += [f"--relative={node}", "--quiet", "sh", "-c", serve]
        return Endpoint(
            spec.url, None, common.logged(words, spec.label), json.dumps([job, spec.label])
        )

    steps = [step(node) for node in range(common.number(spec, "nodes", 1) or 1)]
    return common.machine_of(steps, common.who_ends(spec, f"job {job}"), stays=True)


def _wait(spec: Spec, job: str, tell: common.Progress, patience_s: int) -> None:
    end = time.monotonic() + patience_s
    while True:
        state, why = _state(job)
        if state == "RUNNING":
            return
        if re.match(_DEAD, state):
            raise ConnectionError(_tool.advise(spec.url, f"job {job} is {state}: {why}"))
        if time.monotonic() > end:
            words = f"job {job} is {state} after {patience_s} s: {why}"
            raise ConnectionError(_tool.advise(spec.url, words))
        tell("starting" if state == "CONFIGURING" else "queued", f"job {job}: {why}")
        time.sleep(1)


def _state(job: str) -> tuple[str, str]:
    """Such as `PENDING` and `Resources`. A job that squeue no longer has is gone."""
    done = common.run_program(["squeue", "-h", "-j", job, "-o", "%T %r"], _tool.patience_s)
    if done.returncode != 0 and "Invalid job id" not in done.stderr:
        return "UNKNOWN", done.stderr
    state, _, why = done.stdout.strip().partition(" ")
    return (state, why) if state else ("CANCELLED", f"job {job} is gone")


def explain(endpoint: Endpoint, error: str) -> str:
    """What srun has printed, and what has become of the job."""
    return _tool.explain(endpoint, json.loads(endpoint.handle)[1], state(endpoint))


def state(endpoint: Endpoint) -> str:
    job, _ = json.loads(endpoint.handle)
    now, why = _state(job)
    return "running" if now == "RUNNING" else f"job {job} is {now}: {why}"


def status(endpoint: Endpoint) -> dict[str, str]:
    job, _ = json.loads(endpoint.handle)
    return {"provider": "slurm", "job": job}


def logs(endpoint: Endpoint) -> str:
    return _running.read_log(json.loads(endpoint.handle)[1])


def stop(endpoint: Endpoint) -> None:
    job, label = json.loads(endpoint.handle)
    done = common.run_program(["scancel", job], _tool.patience_s)
    if done.returncode != 0 and "Invalid job id" not in done.stderr:
        raise ConnectionError(_tool.advise(f"job {job} may go on", done.stderr))
    _running.remove_log(label)


def machines() -> list[Endpoint]:
    """This user's jobs that this provider has submitted, also from other machines."""
    if shutil.which("squeue") is None:
        return []
    told = _tool.ask("slurm://", "squeue", "-h", "--me", "-o", "%i %j")
    pairs = [line.split() for line in told.splitlines()]
    return [
        Endpoint(f"slurm://{label}", handle=json.dumps([job, label]), stays=True)
        for job, label in (pair for pair in pairs if len(pair) == 2)
        if job.isdecimal() and label.startswith(_running.LABELS_BEGIN)
    ]
