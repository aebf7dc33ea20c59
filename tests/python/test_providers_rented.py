"""RunPod and SkyPilot, against stand-ins: their real services were never tried."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import runpod_stand_in
import torch
from helpers import is_alive, wait_until

import torch_remote
from torch_remote import _running, providers

pytestmark = pytest.mark.slow

BIN = Path(sys.executable).parent
SSH = Path(__file__).parent / "ssh_stand_in.py"
SKY = """\
#!/bin/sh
echo "$*" >>{folder}/asked
case "$1" in
  launch)
    case "$*" in
      *T4:1*) echo 'ResourcesUnavailableError: Failed to acquire resources' >&2; exit 1 ;;
      *L4:1*) echo 'No cloud access is set up. Run: sky check' >&2; exit 1 ;;
    esac
    echo "$4" >{folder}/cluster ;;
  status) if [ -e {folder}/cluster ]; then echo "$(cat {folder}/cluster)  1x AWS  UP"; fi ;;
  down) rm -f {folder}/cluster ;;
esac
"""


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TORCH_REMOTE_PROGRESS", "0")


@pytest.fixture
def runpod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[runpod_stand_in.Service]:
    with runpod_stand_in.running(tmp_path) as (service, url):
        monkeypatch.setenv("RUNPOD_REST_URL", url)
        monkeypatch.setenv("RUNPOD_API_KEY", runpod_stand_in.KEY)
        yield service


@pytest.fixture
def sky(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs `sky` and `ssh` before real ones. Returns the folder with what was asked."""
    programs = {
        "sky": SKY.format(folder=tmp_path),
        "ssh": f'#!/bin/sh\nexec {sys.executable} {SSH} "$@"\n',
    }
    (tmp_path / "bin").mkdir()
    for name, text in programs.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("TEST_HOST_PATH", f"{BIN}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_a_pod_of_runpod_computes_and_is_deleted(runpod: runpod_stand_in.Service) -> None:
    with torch_remote.connect("runpod://H100?image=me/torch-remote&idle=5m") as machine:
        assert torch.ones(3, device=machine.devices[0]).sum().item() == 3
        (pod,) = runpod.pods.values()
        assert pod["body"]["gpuTypeIds"][0] == "NVIDIA H100 80GB HBM3"
        assert "--idle-timeout 300s" in pod["body"]["dockerStartCmd"][0]
        assert machine.status()["usd_per_hour"] == "2.99"
        pid = pod["process"].pid
        (noted,) = _running.read_all()
        assert [each.handle for each in providers.find_provider("runpod").machines()] == ["pod0"]
        assert noted.endpoint.token == pod["body"]["env"]["TORCH_REMOTE_TOKEN"]
    assert runpod.pods == {} and wait_until(lambda: not is_alive(pid))
    assert _running.read_all() == []


@pytest.mark.parametrize(
    ("trouble", "words", "advice"),
    [
        ("capacity", "no instances currently available", "use another type"),
        ("funds", "Your balance is too low", "add credit"),
        ("key", "401 Unauthorized", "make an API key"),
    ],
)
def test_a_failure_of_runpod_is_one_sentence(
    trouble: str,
    words: str,
    advice: str,
    runpod: runpod_stand_in.Service,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runpod.trouble = trouble
    if trouble == "key":
        monkeypatch.setenv("RUNPOD_API_KEY", "wrong")
    with pytest.raises(torch_remote.ConnectionError) as raised:
        torch_remote.connect("runpod://H100?image=me/torch-remote")
    assert words in str(raised.value) and advice in str(raised.value).partition("What to do: ")[2]
    assert runpod.pods == {} and _running.read_all() == []


def test_wrong_urls_of_runpod_are_told_before_anything_is_asked() -> None:
    with pytest.raises(ValueError, match=r"Invalid GPU type 'T4' for RunPod. Valid types: \['L4'"):
        torch_remote.connect("runpod://T4?image=x")
    with pytest.raises(ValueError, match=r"needs image="):
        torch_remote.connect("runpod://H100")


def test_a_cluster_of_skypilot_computes_and_is_ended(sky: Path) -> None:
    url = f"sky://A100-40GB?infra=aws&spot=1&idle=90s&python={sys.executable}"
    with torch_remote.connect(url) as machine:
        assert torch.ones(3, device=machine.devices[0]).sum().item() == 3
        asked = (sky / "asked").read_text().splitlines()[0]
        assert "--gpus A100:1 --idle-minutes-to-autostop 2 --down --infra aws --use-spot" in asked
        (noted,) = _running.read_all()
        provider = providers.find_provider("sky")
        assert provider.state(noted.endpoint) == "running"
        assert [each.handle for each in provider.machines()] == [noted.name]
        pid = int(machine.status()["pid"])
    assert not (sky / "cluster").exists() and wait_until(lambda: not is_alive(pid))
    assert _running.read_all() == []


@pytest.mark.parametrize(
    ("gpu", "advice"), [("T4", "the cloud has no such GPU free"), ("L4", "run `sky check`")]
)
def test_a_failure_of_skypilot_is_one_sentence(gpu: str, advice: str, sky: Path) -> None:
    with pytest.raises(torch_remote.ConnectionError, match=f"What to do: .*{advice}"):
        torch_remote.connect(f"sky://{gpu}")
    assert "down -y torch-remote-sky-" in (sky / "asked").read_text()
    assert _running.read_all() == []
