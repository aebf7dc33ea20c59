"""Doctor's checks that load torch and connect. A child process does it (`probe`)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from .findings import Finding
from .output import bytes_text, duration_text

DEADLINE = 120.0  # seconds; the client itself gives up earlier
SLOW = 0.05  # a round trip of more seconds is worth a warning
REBUILD = "build it again in this environment: `make build` or `pip install .`"

# What a probe was doing when it gave no further line.
_AFTER = {
    "": "loading torch",
    "torch": "loading torch_remote",
    "extension": "reading the configuration",
    "url": "connecting",
    "machine": "measuring the network",
}


def run_probe(url: str | None, token_file: str | None) -> tuple[dict[str, Any], str]:
    """The facts of each step, and why the probe did not end well; empty if it did."""
    command = [sys.executable, "-m", "torch_remote_cli.probe", url or "", token_file or ""]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=DEADLINE, check=False
        )
        output, status, words = done.stdout, done.returncode, done.stderr
    except subprocess.TimeoutExpired as error:
        output = (error.stdout or b"").decode() if isinstance(error.stdout, bytes) else ""
        status, words = None, ""
    steps, last = {}, ""
    for line in output.splitlines():
        try:
            facts = json.loads(line)
            last = facts["step"]
        except (ValueError, TypeError, KeyError):
            continue  # something else printed it
        steps[last] = facts
    if last == "end":
        return steps, ""
    what = _AFTER.get(last, last)
    if status is None:
        return steps, f"{what} took more than {DEADLINE:.0f} s"
    why = (words.strip().splitlines() or [f"exit status {status}"])[-1]
    return steps, f"{what} ended the process: {why}"


def findings_of(steps: dict[str, Any], failure: str, wants_gpu: bool) -> Iterator[Finding]:
    if "torch" in steps:
        yield from about_torch(steps["torch"])
    if "extension" in steps:
        yield from about_extension(steps["extension"])
    if "config" in steps:
        remedy = "correct the file; docs/providers.md has its keys"
        yield Finding("configuration", "problem", steps["config"]["error"], remedy)
    if "machine" in steps:
        yield from about_machine(steps["url"]["url"], steps["machine"], wants_gpu)
    if "network" in steps:
        yield from about_network(steps["network"])
    if failure:
        remedy = "run with TORCH_REMOTE_LOG=debug, and report it if the log does not explain it"
        yield Finding("probe", "problem", failure, remedy)


def about_torch(facts: dict[str, Any]) -> Iterator[Finding]:
    if "error" in facts:
        remedy = "install torch 2.11 to 2.13 into this environment"
        yield Finding("torch", "problem", f"cannot be imported: {facts['error']}", remedy)
        return
    kind = f"CUDA {facts['cuda']}" if facts["cuda"] else "CPU build"
    yield Finding("torch", "ok", f"{facts['version']} ({kind}), {facts['path']}")
    if facts["cuda"] and not facts["is_cuda_available"]:
        why = "CUDA does not work" if facts["has_driver"] else "there is no NVIDIA driver"
        yield Finding(
            "local CUDA",
            "warning",
            f"torch is a build for CUDA {facts['cuda']}, and {why} here",
            "nothing to do where only the server has GPUs; else install or update the driver, "
            "and look at `nvidia-smi`",
        )


def about_extension(facts: dict[str, Any]) -> Iterator[Finding]:
    if "error" in facts:
        yield Finding("extension", "problem", facts["error"], REBUILD)
        return
    yield Finding("extension", "ok", f"built for torch {facts['built_for']}, {facts['path']}")
    if facts["local_gpus"]:
        yield Finding(
            "local CUDA",
            "warning",
            f"this machine has {facts['local_gpus']} GPU(s), and autograd on local CUDA breaks in "
            "a process that imports torch_remote (a limitation of PyTorch)",
            "use `remote` for all GPU work of such a process (TORCH_REMOTE=local has these GPUs "
            "too), or import torch_remote in another process",
        )


def about_machine(url: str, facts: dict[str, Any], wants_gpu: bool) -> Iterator[Finding]:
    if "error" in facts:
        text = facts["error"]
        text = text if url.partition("?")[0] in text else f"{url}: {text}"
        remedy = facts["remedy"] or "run with TORCH_REMOTE_LOG=debug, and read the server's log"
        yield Finding("machine", "problem", text, remedy)
        return
    devices = facts["devices"]
    first = devices[0]
    text = (
        f"{len(devices)} x {first['name']} ({first['kind']}, {bytes_text(first['total_memory'])})"
    )
    yield Finding("machine", "ok", f"{url} on {facts['host']}: {text}")
    yield from about_versions(facts)
    if wants_gpu and first["kind"] != "cuda":
        yield Finding(
            "GPU",
            "problem",
            f"the server on {facts['host']} computes on its CPU",
            "start it with `--device cuda`, which says why it cannot; it needs a CUDA build of "
            "torch, the driver, and a GPU that CUDA_VISIBLE_DEVICES does not hide",
        )


def about_versions(facts: dict[str, Any]) -> Iterator[Finding]:
    here, there = (".".join(facts[side].split(".")[:2]) for side in ("here", "torch"))
    if here == there:
        yield Finding("versions", "ok", f"torch {here} at both ends")
        return
    yield Finding(
        "versions",
        "warning",
        f"torch {facts['here']} here and {facts['torch']} on the server: operators that one of "
        "them lacks fail, and results may differ in the last bits",
        f"install torch {there} here, or torch {here} on the server",
    )


def about_network(facts: dict[str, Any]) -> Iterator[Finding]:
    trip = facts["round_trip"]
    text = f"round trip {duration_text(trip)}, longest {duration_text(facts['longest'])}"
    if trip <= SLOW:
        yield Finding("network", "ok", text)
        return
    yield Finding(
        "network",
        "warning",
        f"slow: {text}; each value that a program reads waits that long",
        "read values seldom, or with torch_remote.read(); choose a server that is nearer; "
        "`torch-remote bench` says more",
    )
