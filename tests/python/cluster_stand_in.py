#!/usr/bin/env python3
"""Plays kubectl, and Slurm's sbatch, squeue, srun and scancel, for tests: commands run here.

The folder TEST_CLUSTER is the cluster: a folder for each pod or job, with its process groups.
The name of an image or a partition says what goes wrong: `missing`, `full`, `quota`. A file
`fails` in the folder is what every command says before it fails. With TEST_CANNOT_END nothing can
be deleted or cancelled.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

HOP = Path(__file__).resolve().parents[1] / "fault" / "hop.py"
CLUSTER = Path(os.environ["TEST_CLUSTER"])
PATH = os.environ["TEST_HOST_PATH"]


def fail(text: str) -> NoReturn:
    print(text, file=sys.stderr)
    sys.exit(1)


def option(words: list[str], name: str) -> str:
    return next((word.partition("=")[2] for word in words if word.startswith(f"--{name}=")), "")


def start(place: Path, command: list[str], **files: str) -> None:
    """What the pod or the job itself runs; it goes on without this process."""
    place.mkdir()
    for name, text in files.items():
        (place / name).write_text(text)
    note = f'echo $$ >{place}/main.new; mv {place}/main.new {place}/main; exec "$@"'
    subprocess.Popen(
        ["sh", "-c", note, "sh", *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def run_inside(place: Path, command: list[str], missing: str) -> NoReturn:
    """Runs a command beside it, whose end does not follow from the end of this process."""
    if not place.exists():
        fail(missing)
    note = f'echo $$ >>{place}/groups; exec "$@"'
    words = [sys.executable, str(HOP), "setsid", "sh", "-c", note, "sh", *command]
    os.execve(words[0], words, {**os.environ, "PATH": PATH})


# As Slurm: what is left of a step when its command ends is killed.
STEP = """
TEST_STEP=step-$$ "$@"
for each in $(grep -ls TEST_STEP=step-$$ /proc/[0-9]*/environ); do
  each=${each#/proc/}
  kill -9 ${each%/environ}
done
"""


def end(place: Path) -> None:
    for name in ("main", "groups"):
        if (place / name).exists():
            for group in (place / name).read_text().split():
                with suppress(ProcessLookupError):
                    os.killpg(int(group), signal.SIGKILL)
    for file in place.iterdir():
        file.unlink()
    place.rmdir()


def is_ended(place: Path) -> bool:
    if not (place / "main").exists():
        return False  # it is only being started
    try:
        stat = Path(f"/proc/{(place / 'main').read_text().strip()}/stat").read_text()
    except FileNotFoundError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


def kubectl(words: list[str]) -> None:
    words = [word for word in words if not word.startswith("--namespace")]
    if words[0] == "create":
        pod = json.load(sys.stdin) if words[-1] == "-" else json.loads(Path(words[-1]).read_text())
        if "--dry-run=client" in words:
            return print(json.dumps(pod))
        container, place = pod["spec"]["containers"][0], CLUSTER / pod["metadata"]["name"]
        if container["image"] == "quota":
            fail('pods "x" is forbidden: exceeded quota: gpus, requested: nvidia.com/gpu=1')
        if place.exists():
            fail(f'Error from server (AlreadyExists): pods "{place.name}" already exists')
        start(place, container["command"], pod=json.dumps(pod))
    elif words[:2] == ["get", "pods"]:
        pods = [json.loads(each.read_text()) for each in sorted(CLUSTER.glob("*/pod"))]
        label = words[words.index("-l") + 1]
        labelled = [each for each in pods if label in each["metadata"].get("labels", {})]
        print(json.dumps({"items": labelled}))
    elif words[:2] == ["get", "nodes"]:
        print(json.dumps({"items": [{"metadata": {"labels": {"nvidia.com/gpu.product": "T4"}}}]}))
    elif words[:2] == ["get", "pod"]:
        if not (CLUSTER / words[2]).exists():
            if "--ignore-not-found" in words:
                return
            fail(f'Error from server (NotFound): pods "{words[2]}" not found')
        print(json.dumps({"status": pod_status(CLUSTER / words[2])}))
    elif words[:2] == ["delete", "pod"]:
        for name in words[2:]:
            if (CLUSTER / name).exists():
                end(CLUSTER / name)
    elif words[0] == "exec":
        missing = f'Error from server (NotFound): pods "{words[2]}" not found'
        run_inside(CLUSTER / words[2], words[words.index("--") + 1 :], missing)


def pod_status(place: Path) -> dict[str, object]:
    image = json.loads((place / "pod").read_text())["spec"]["containers"][0]["image"]
    if image == "full":
        why = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        why["message"] = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
        return {"phase": "Pending", "conditions": [why]}
    if image == "missing":
        state = {"waiting": {"reason": "ErrImagePull", "message": "pull access denied"}}
        return {"phase": "Pending", "containerStatuses": [{"state": state}]}
    return {"phase": "Succeeded"} if is_ended(place) else {"phase": "Running"}


def sbatch(words: list[str]) -> None:
    partition = option(words, "partition")
    if partition == "quota":
        fail("sbatch: error: Batch job submission failed: Job violates accounting/QOS policy limit")
    if option(words, "gpus-per-node").startswith("nope"):
        fail("sbatch: error: Invalid generic resource (gres) specification")
    job = str(1000 + len(list(CLUSTER.iterdir())))
    name = option(words, "job-name")
    start(CLUSTER / job, ["sh", "-c", option(words, "wrap")], name=name, partition=partition)
    print(job)


def squeue(words: list[str]) -> None:
    if "--me" in words:
        for each in CLUSTER.glob("*/name"):
            print(each.parent.name, each.read_text())
        return
    place = CLUSTER / words[words.index("-j") + 1]
    if not place.exists() or is_ended(place):
        fail("slurm_load_jobs error: Invalid job id specified")
    full = (place / "partition").read_text() == "full"
    print("PENDING Resources" if full else "RUNNING None")


def srun(words: list[str]) -> None:
    missing = "srun: error: Unable to confirm allocation: Invalid job id specified"
    step = ["sh", "-c", STEP, "sh", *words[words.index("sh") :]]
    run_inside(CLUSTER / option(words, "jobid"), step, missing)


def scancel(words: list[str]) -> None:
    name = option(words, "name")
    if name:
        for each in CLUSTER.glob("*/name"):
            if each.read_text() == name:
                end(each.parent)
        return
    if not (CLUSTER / words[0]).exists():
        fail("scancel: error: Kill job error on job id: Invalid job id specified")
    end(CLUSTER / words[0])


if __name__ == "__main__":
    if (CLUSTER / "fails").exists():
        fail((CLUSTER / "fails").read_text())
    if "TEST_CANNOT_END" in os.environ and {"delete", "scancel"} & set(sys.argv[1:3]):
        fail("Unable to contact the controller: i/o timeout")
    {each.__name__: each for each in (kubectl, sbatch, squeue, srun, scancel)}[sys.argv[1]](
        sys.argv[2:]
    )
