"""A name in a URL reaches a provider's program as a name, and never as one of its options."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from torch_remote.providers import find_provider, parse_url
from torch_remote.providers import kubernetes as k8s
from torch_remote.providers.grammar import HOST, LABEL, POD, WORD

REFUSED = [
    "k8s://--kubeconfig=FILE",
    "k8s://-nkube-system",
    "k8s://-n/x",
    "k8s://Pod",
    "k8s://a..b",
    "k8s://a b",
    "k8s://pod/../-x",
    f"k8s://{'a' * 254}",
    "k8s://pod?namespace=--x",
    "k8s://pod?namespace=kube_system",
    "k8s://pod?container=-c",
    "k8s://pod?context=-x",
    "k8s://pod?context=a%0Ab",
    "k8s://?image=x&namespace=a.b",
    "slurm://--wrap=x",
    "slurm://-p",
    "slurm://a b",
    "slurm://gpus?account=a%00b",
    "slurm://gpus?gpu=-x",
    "slurm://gpus?device=--library",
    "ssh://-oProxyCommand=x",
    "ssh://user@-x",
    "ssh://-l@host",
    "ssh://host?device=-x",
    "ssh://host?lease=--stdio",
    "ray://--address",
    "ray://host:1/x",
    "ray://evil?device=-x",
    "sky://H100?infra=--down",
    "sky://H100?infra=a%20b",
    "sky://--gpus",
    "modal://--env",
    "runpod://--x?image=y",
]


# Promise 13a.
@pytest.mark.parametrize("url", REFUSED)
def test_what_could_be_an_option_is_refused_before_any_program_runs(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*words: Any, **_: Any) -> None:
        raise AssertionError(f"{url} ran {words}")

    monkeypatch.setattr(subprocess, "run", never)
    monkeypatch.setattr(subprocess, "Popen", never)
    monkeypatch.setattr("shutil.which", lambda program: f"/bin/{program}")
    with pytest.raises(
        ValueError, match=r"is refused: write|names no host|Invalid GPU|Invalid IPv6"
    ):
        find_provider(url.partition(":")[0]).launch(parse_url(url))


def test_names_of_ordinary_machines_are_accepted() -> None:
    assert all(map(POD.accepts, ("a", "web-0", "my-pod-7d9f8b6c5-x2x7k", "node.example.com")))
    assert all(map(LABEL.accepts, ("default", "kube-system", "a1")))
    arn = "arn:aws:eks:us-east-1:123456789012:cluster/ml"
    assert all(map(WORD.accepts, (arn, "gke_p_z_c", "me@box", "gpu,debug", "[a*2&b*4]", "k8s/*")))
    assert all(map(HOST.accepts, ("head", "10.0.0.1:6379", "[::1]:6379", "head-0.ray.svc:10001")))


# Promise 13a.
def test_a_cluster_cannot_name_a_pod_so_that_kubectl_takes_it_for_an_option(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    label = {"torch-remote/machine": "torch-remote-x-1"}
    items = [{"metadata": {"name": name, "labels": label}} for name in ("--all", "good-1")]
    monkeypatch.setattr("shutil.which", lambda program: f"/bin/{program}")
    done = subprocess.CompletedProcess([], 0, json.dumps({"items": items}), "")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    (found,) = k8s.machines()
    assert json.loads(found.handle)[2] == ["good-1"]
