"""Kubernetes and Slurm, with stand-ins for their commands that run what they are given here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from helpers import DEADLINE, assert_runs, is_alive, run_python, wait_until

import torch_remote
from torch_remote import _kept, _running, providers

BIN = Path(sys.executable).parent
STAND_IN = Path(__file__).parent / "cluster_stand_in.py"
LAUNCHES = ["k8s://?image=good&num_gpus=0&", "slurm://gpus?num_gpus=0&"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (BIN / "torch-remote").exists(), reason="torch-remote is not installed"),
]


@pytest.fixture(autouse=True)
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cluster, whose commands are first on the PATH. No process is left in it."""
    programs, folder = tmp_path / "bin", tmp_path / "cluster"
    programs.mkdir()
    folder.mkdir()
    for name in ("kubectl", "sbatch", "squeue", "srun", "scancel"):
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {STAND_IN} {name} "$@"\n')
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("TEST_HOST_PATH", f"{BIN}:/usr/bin:/bin")
    monkeypatch.setenv("TEST_CLUSTER", str(folder))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TORCH_REMOTE_PROGRESS", "0")
    yield folder
    (folder / "fails").unlink(missing_ok=True)
    left = [each.name for each in folder.iterdir()]
    for name in left:
        subprocess.run([programs / "scancel", name], check=True)
    assert left == []


@pytest.mark.parametrize("url", LAUNCHES)
def test_a_machine_is_made_used_and_ended(
    url: str, cluster: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with torch_remote.connect(f"{url}idle=7m&lifetime=3h") as machine:
        x = torch.arange(4.0, device=machine.devices[0], requires_grad=True)
        (x * x).sum().backward()
        assert x.grad is not None and x.grad.tolist() == [0, 2, 4, 6]
        status = machine.status()
        assert "it ends itself after 7m without a call, and after 3h" in status["ends"]
        (place,) = cluster.iterdir()
        pid, main = int(status["pid"]), int((place / "main").read_text())
        (noted,) = _running.read_all()
        assert (noted.url, noted.kept, noted.pid) == (
            f"{url}idle=7m&lifetime=3h",
            False,
            os.getpid(),
        )
        listed = providers.find_provider(noted.provider).machines()
        assert len(listed) == 1
        command = Path(f"/proc/{pid}/cmdline").read_text()
        assert "--idle-timeout\x00420s\x00--max-lifetime\x0010800s" in command
    assert wait_until(lambda: not is_alive(pid) and not is_alive(main))
    assert _running.read_all() == []
    stages = [record.getMessage().split(": ")[1].split(" (")[0] for record in caplog.records]
    assert stages == ["queued", "connecting"]


def children_of(process: int) -> list[int]:
    return [
        int(child)
        for file in Path(f"/proc/{process}/task").glob("*/children")
        for child in file.read_text().split()
    ]


def test_one_machine_of_two_pods_has_the_devices_of_both() -> None:
    with torch_remote.connect("k8s://?image=good&num_gpus=0&pods=2") as machine:
        a, b = machine.devices
        assert (torch.ones(2, device=a).to(b) + torch.ones(2, device=b)).tolist() == [2, 2]
        assert machine in torch_remote.machines() and len(machine.status()["pods"].split()) == 2
    with torch_remote.connect("slurm://?num_gpus=0&nodes=2") as machine:
        assert len(machine.devices) == 2


POD = {
    "kind": "Pod",
    "metadata": {"name": "mine", "labels": {"team": "a"}},
    "spec": {"containers": [{"image": "good", "command": ["sleep", "1000"]}]},
}


def test_pods_of_a_file_have_names_and_a_lifetime_of_ours(cluster: Path, tmp_path: Path) -> None:
    (tmp_path / "pod.json").write_text(json.dumps(POD))
    with torch_remote.connect(f"k8s://?spec={tmp_path}/pod.json&pods=2&lifetime=2h") as machine:
        assert len(machine.devices) == 2
        made = [json.loads((each / "pod").read_text()) for each in cluster.iterdir()]
        assert {each["metadata"]["labels"]["team"] for each in made} == {"a"}
        assert {each["spec"]["activeDeadlineSeconds"] for each in made} == {7200}
        assert machine.status()["ends"].endswith("ends the pod; it ends itself after 2h")
        (listed,) = providers.find_provider("k8s").machines()  # both pods are one machine
        assert len(json.loads(listed.handle)[2]) == 2
        assert [each.provider for each in _kept.listed(everywhere=True)].count("k8s") == 1
    for url, words in (
        (f"spec={tmp_path}/none.json", "there is no file"),
        (f"spec={tmp_path}/pod.json&num_gpus=4", "leave num_gpus= out"),
    ):
        with pytest.raises(ValueError, match=words):
            torch_remote.connect(f"k8s://?{url}")


def test_a_launch_that_fails_leaves_pods_and_jobs_of_the_same_name_alone(cluster: Path) -> None:
    kubectl = ["kubectl", "create", "-f", "-"]
    pod = {**POD, "metadata": {"name": "box"}}
    subprocess.run(kubectl, input=json.dumps(pod), text=True, check=True)
    subprocess.run(["sbatch", "--job-name=box", "--wrap=sleep 1000"], check=True)
    there = sorted(each.name for each in cluster.iterdir())
    for url in ("k8s://?image=missing", "slurm://full?wait=1s"):
        with pytest.raises(torch_remote.ConnectionError):
            _kept.up(url, "box")
    assert sorted(each.name for each in cluster.iterdir()) == there
    subprocess.run(["kubectl", "delete", "pod", *there], check=True)


@pytest.mark.parametrize("url", ["k8s://?image=full&wait=1s", "slurm://full?wait=1s"])
def test_what_cannot_be_ended_is_told_and_not_forgotten(
    url: str, cluster: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TEST_CANNOT_END", "1")
    with pytest.raises(torch_remote.ConnectionError, match=r"Insufficient|Resources"):
        torch_remote.connect(url)
    (listed,) = _kept.listed(everywhere=False, ask=False)
    assert "may go on: Unable to contact the controller: i/o timeout. What to do: " in caplog.text
    assert f"`torch-remote down {listed.name}` tries it again" in caplog.text
    assert cli("down", listed.name).returncode == 1 and len(_running.read_all()) == 1
    monkeypatch.delenv("TEST_CANNOT_END")
    assert cli("down", listed.name).returncode == 0
    assert _running.read_all() == [] and list(_running.folder().iterdir()) == []


@pytest.mark.parametrize("url", LAUNCHES)
def test_a_lost_connection_is_resumed(url: str) -> None:
    with torch_remote.connect(url) as machine:
        x = torch.ones(3, device=machine.devices[0])
        x.sum().item()
        for process in children_of(os.getpid()):
            if b"hop.py" in Path(f"/proc/{process}/cmdline").read_bytes():
                os.kill(process, signal.SIGKILL)
        assert (x + 1).tolist() == [2, 2, 2]


def test_a_pod_that_runs_already_is_used_and_left(cluster: Path) -> None:
    with torch_remote.connect("k8s://?image=good&num_gpus=0"):
        (pod,) = cluster.iterdir()
        with torch_remote.connect(f"k8s://{pod.name}?namespace=mine") as machine:
            assert torch.ones(2, device=machine.devices[0]).sum().item() == 2
            assert "the pod goes on" in machine.status()["ends"]
        assert pod.exists()
    assert not pod.exists()


@pytest.mark.parametrize(
    ("url", "words", "advice"),
    [
        ("k8s://nobody", 'pods "nobody" not found', "check the pod's name"),
        ("k8s://?image=quota", "exceeded quota: gpus", "ask for a higher quota"),
        ("k8s://?image=missing", "ErrImagePull pull access denied", "check image=NAME"),
        ("k8s://?image=full&wait=1s", "3 Insufficient nvidia.com/gpu", "wait longer with wait=1h"),
        ("slurm://quota", "accounting/QOS policy limit", "your quota is used up"),
        ("slurm://?gpu=nope", "Invalid generic resource", "`sinfo -o %G` lists them"),
        ("slurm://full?wait=1s", "PENDING after 1 s: Resources", "wait longer with wait=2h"),
    ],
)
def test_a_failure_is_one_sentence_and_leaves_nothing(url: str, words: str, advice: str) -> None:
    with pytest.raises(torch_remote.ConnectionError) as raised:
        torch_remote.connect(url)
    text = str(raised.value)
    assert words in text and advice in text.partition("What to do: ")[2]
    assert text.startswith(url) and "\n" not in text
    assert _running.read_all() == []


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        (
            'E1116 19:59:58.366541   25657 memcache.go:265] "Unhandled Error"\n'
            "The connection to the server 127.0.0.1:1 was refused - is it the right host?",
            "check that the cluster runs",
        ),
        ("error: You must be logged in to the server (Unauthorized)", "log in to the cluster"),
    ],
)
def test_no_cluster_and_no_credentials_are_told(said: str, advice: str, cluster: Path) -> None:
    (cluster / "fails").write_text(said)
    with pytest.raises(torch_remote.ConnectionError, match=f"What to do: {advice}") as raised:
        torch_remote.connect("k8s://pod")
    assert str(raised.value).startswith(f"k8s://pod: {said.splitlines()[-1]}")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("k8s://", "names neither a pod nor an image"),
        ("k8s://?image=good&product=H900", r"Invalid GPU type 'H900'. Valid types: \['T4'\]"),
        ("k8s://?image=good&idel=1m", "no option 'idel'; there are command, "),
        ("slurm://?idle=soon", "idle=soon is no duration"),
        ("slurm://?nodes=-1", "nodes=-1 must be a number"),
    ],
)
def test_a_wrong_url_is_told_before_anything_is_launched(url: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        torch_remote.connect(url)


def test_without_the_programs_the_sentence_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(torch_remote.ConnectionError, match="no `kubectl` on this machine"):
        torch_remote.connect("k8s://pod")
    with pytest.raises(torch_remote.ConnectionError, match="no `sbatch` on this machine"):
        torch_remote.connect("slurm://")


@pytest.mark.parametrize("url", LAUNCHES)
def test_an_evicted_machine_is_a_lost_session_with_the_cause(url: str, cluster: Path) -> None:
    said = assert_runs(
        f"""
        import os, subprocess, sys, torch, torch_remote
        sys.stderr = sys.stdout
        try:
            with torch_remote.connect({url + "lease=1s"!r}) as machine:
                x = torch.ones(2, device=machine.devices[0])
                x.sum().item()
                subprocess.run(["scancel", *os.listdir({str(cluster)!r})], check=True)
                os.environ["TEST_CANNOT_END"] = "1"
                print(x.sum().item())
        except torch_remote.SessionLost as error:
            print(str(error).replace(chr(10), " "))
        """,
        TORCH_REMOTE_PATIENCE="2s",
        TORCH_REMOTE_LOG="error",
    )
    assert "go on from your last checkpoint" in said, said
    (left,) = _running.read_all()
    assert f"`torch-remote down {left.name}` tries it again" in said
    assert cli("down", left.name).returncode == 0


LAUNCH_AND_WAIT = """
import sys, torch_remote
torch_remote.connect(sys.argv[1])
"""


@pytest.mark.parametrize("url", ["k8s://?image=full", "slurm://full?"])
def test_ctrl_c_while_launching_leaves_nothing(url: str, cluster: Path) -> None:
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCH_AND_WAIT, url], stderr=subprocess.PIPE, text=True
    )
    mains = lambda: list(cluster.glob("*/main"))  # noqa: E731
    assert wait_until(lambda: len(mains()) == 1)
    pid = int(mains()[0].read_text())
    launcher.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in launcher.communicate(timeout=DEADLINE)[1]
    assert not list(cluster.iterdir()) and wait_until(lambda: not is_alive(pid))
    assert _running.read_all() == []


def test_a_pod_whose_client_is_killed_ends_by_itself(cluster: Path) -> None:
    run_python(
        """
        import contextlib, os, torch_remote
        for idle in ("3s", "10s", "40s"):  # a busy machine may connect too late
            with contextlib.suppress(torch_remote.ConnectionError):
                torch_remote.connect(f"k8s://?image=good&num_gpus=0&lease=1s&idle={idle}")
                os.kill(os.getpid(), 9)
        """
    )
    (place,) = cluster.iterdir()
    main = int((place / "main").read_text())
    assert wait_until(lambda: not is_alive(main))
    (noted,) = _running.read_all()
    assert noted.is_forgotten
    assert cli("down", noted.name).returncode == 0
    assert not place.exists() and _running.read_all() == []


def cli(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch_remote_cli", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)


def test_up_ps_logs_and_down_handle_a_machine_that_outlives_programs(cluster: Path) -> None:
    made = cli("up", "k8s://?image=good&num_gpus=0", "--name", "box")
    assert made.returncode == 0 and "box runs. `torch-remote down box` ends the pod" in made.stdout
    (pod,) = cluster.iterdir()
    assert pod.name.startswith("torch-remote-box-")
    assert cli("up", "k8s://?image=good", "--name", "box").returncode == 2
    for _ in range(2):  # programs come and go
        with torch_remote.connect("box") as machine:
            assert torch.ones(2, device=machine.devices[0]).sum().item() == 2
    (pod / "groups").write_text("")
    (told,) = json.loads(cli("ps", "--json").stdout)
    assert (told["name"], told["provider"], told["state"]) == ("box", "k8s", "running")
    assert told["kept"] is True
    assert cli("logs", "box").returncode == 0
    assert cli("logs", "nobody").returncode == 1
    _running.forget("box")  # as on another computer
    listed = [each["name"] for each in json.loads(cli("ps", "--all", "--json").stdout)]
    assert f"k8s://{pod.name}" in listed
    gone = cli("down", f"k8s://{pod.name}", "nobody")
    assert gone.returncode == 1 and f"k8s://{pod.name} is ended" in gone.stdout
    assert "there is no machine nobody" in gone.stderr
    assert list(cluster.iterdir()) == [] and "no machines are running" in cli("ps").stdout
    (cluster / "fails").write_text("The connection to the server was refused")
    states = [each.state for each in _kept.listed(everywhere=True) if each.provider == "k8s"]
    assert len(states) == 1 and states[0].startswith("unknown: k8s://: The connection")


def test_up_refuses_what_does_not_stay_and_names_that_are_none() -> None:
    for url, words in (
        ("ssh://box", "needs no `up`"),
        ("local", "each program starts that server for itself"),
        ("tcp://127.0.0.1:1", "runs already"),
    ):
        with pytest.raises(ValueError, match=words):
            _kept.up(url)
    with pytest.raises(ValueError, match="is no name of a machine"):
        _kept.up("k8s://?image=good", "../x")


def test_down_all_ends_what_a_killed_program_has_left(cluster: Path) -> None:
    connect = "torch_remote.connect('slurm://?num_gpus=0')"
    run_python(f"import os, torch_remote; {connect}; os.kill(os.getpid(), 9)")
    (place,) = cluster.iterdir()
    main = int((place / "main").read_text())
    (one,) = _kept.listed(everywhere=False)
    assert one.state == "running; the program that launched it has ended"
    assert cli("down", "--all").returncode == 0
    assert not is_alive(main) and _running.read_all() == []


LAB = """\
#!/bin/sh
case $1 in
  reserve) if [ "$3" = --gpus=9 ]; then echo "no boxes with 9 GPUs" >&2; exit 1; fi ;;
  run) shift 2; PATH=$TEST_HOST_PATH; exec "$@" ;;
  state) echo running ;;
  release) echo "$2" >$TEST_CLUSTER/../released ;;
esac
"""


def test_the_provider_of_the_document_works(tmp_path: Path) -> None:
    document = Path(__file__).resolve().parents[2] / "docs" / "providers.md"
    code = document.read_text().partition("## Write a provider")[2]
    code = code.partition("```python\n")[2].partition("```")[0]
    assert len(code.splitlines()) <= 60
    lab = types.ModuleType("lab")
    exec(code, lab.__dict__)
    (tmp_path / "bin" / "lab").write_text(LAB)
    (tmp_path / "bin" / "lab").chmod(0o755)
    providers.register_provider("lab", lab)  # type: ignore[arg-type]
    try:
        with torch_remote.connect("lab://?num_gpus=2") as machine:
            assert torch.ones(2, device=machine.devices[0]).sum().item() == 2
            (listed,) = _kept.listed(everywhere=False)
            assert listed.state == "running"
        assert (tmp_path / "released").read_text() == f"{listed.endpoint.handle}\n"
        (tmp_path / "released").unlink()
        with pytest.raises(ConnectionError, match=r"no boxes.*What to do: come back later"):
            torch_remote.connect("lab://?num_gpus=9")
        assert (tmp_path / "released").exists() and _running.read_all() == []
    finally:
        providers._registered.pop("lab")
