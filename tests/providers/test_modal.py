"""The Modal provider, with Modal's own SDK, against a stand-in for its service."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from helpers import DEADLINE, run_python, wait_until

import torch_remote
from torch_remote import GPUType, _kept, _running

modal_stand_in = pytest.importorskip("modal_stand_in", reason="Modal's SDK is not installed")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[modal_stand_in.Service]:
    """One service for all tests, as the SDK keeps its connection."""
    folder = tmp_path_factory.mktemp("modal")
    settings = {
        "MODAL_TOKEN_ID": "ak-test",
        "MODAL_TOKEN_SECRET": "as-test",
        "MODAL_CONFIG_PATH": str(folder / "none.toml"),
        "XDG_STATE_HOME": str(folder / "state"),
    }
    with modal_stand_in.running(folder) as (made, url), pytest.MonkeyPatch.context() as patch:
        for name, value in {**settings, "MODAL_SERVER_URL": url}.items():
            patch.setenv(name, value)
        yield made


@pytest.fixture(autouse=True)
def nothing_is_left(service: modal_stand_in.Service) -> Iterator[None]:
    service.trouble = ""
    service.sandboxes.clear()
    yield
    left = [name for name, each in service.sandboxes.items() if each.process.poll() is None]
    for each in service.sandboxes.values():
        each.end()
    assert left == [] and _running.read_all() == []


def only(service: modal_stand_in.Service) -> modal_stand_in.Sandbox:
    (sandbox,) = service.sandboxes.values()
    return sandbox


def test_a_machine_of_modal_computes_and_ends_with_its_block(
    service: modal_stand_in.Service, caplog: pytest.LogCaptureFixture
) -> None:
    with torch_remote.connect("modal://auto?memory=30GiB&idle=5m&lifetime=2h") as machine:
        x = torch.arange(3.0, device=machine.devices[0], requires_grad=True)
        (x * x).sum().backward()
        assert x.grad is not None and x.grad.tolist() == [0, 2, 4]
        definition = only(service).definition
        assert definition.resources.gpu_config.gpu_type == "L40S"
        assert definition.timeout_secs == 7200
        assert [(each.port, each.unencrypted) for each in definition.open_ports.ports] == [
            (4711, True)
        ]
        script = definition.entrypoint_args[-1]
        assert "--idle-timeout 300s --max-lifetime 7200s" in script
        (token,) = [each["TORCH_REMOTE_TOKEN"] for each in service.secrets.values()]
        assert len(token) == 64 and token not in script and token not in caplog.text
        status = machine.status()
        assert status["url"].startswith("tls://127.0.0.1:") and "pin=" in status["url"]
        assert (status["provider"], status["usd_per_hour"]) == ("modal", "1.95")
        assert "after 5m without a call, and after 2h" in status["ends"]
        assert "listening on" in machine.logs()
        (noted,) = _running.read_all()
        assert oct((_running.folder() / f"{noted.name}.json").stat().st_mode)[-3:] == "600"
        assert [
            each.handle for each in torch_remote.providers.find_provider("modal").machines()
        ] == [noted.endpoint.handle]
    told = [re.match(r"[^ ]+: (\w+)", each.getMessage()) for each in caplog.records]
    stages = [each[1] for each in told if each is not None]
    assert stages == ["starts", "image", "queued", "starting", "connecting"]
    assert "1.95 USD an hour by the list of" in caplog.text


def test_the_image_has_the_clients_torch_and_the_server(service: modal_stand_in.Service) -> None:
    with torch_remote.connect("modal://T4"):
        layers = [line for image in service.images for line in image.dockerfile_commands]
    assert any(f"torch=={torch.__version__.partition('+')[0]}" in line for line in layers)
    python = f"python:{sys.version_info.major}.{sys.version_info.minor}"
    assert any(line.startswith("FROM") and python in line for line in layers), layers
    assert any("chmod 755 /opt/torch-remote/torch-remote-server" in line for line in layers)


@pytest.mark.parametrize("gpu", list(GPUType), ids=lambda each: each.value)
def test_each_of_the_nine_types_is_launched_at_first_use(
    gpu: GPUType, service: modal_stand_in.Service
) -> None:
    device = torch_remote.create_modal_device(gpu)
    assert service.sandboxes == {}
    assert torch.ones(2, device=device).sum().item() == 2
    assert only(service).definition.resources.gpu_config.gpu_type == gpu.value
    torch_remote.machines()[-1].stop()


@pytest.mark.parametrize(
    ("trouble", "url", "words", "advice"),
    [
        ("auth", "modal://T4", "Token ID is malformed", "run `modal token new`"),
        ("quota", "modal://T4", "GPU limit of the workspace", "raise the limit of your workspace"),
        ("image", "modal://T4", "no matching distribution", "read the build's log"),
        ("capacity", "modal://T4?wait=2s", "no machine within 2 s", "wait longer with wait=1h"),
    ],
)
def test_a_failure_is_one_sentence_and_leaves_nothing(
    trouble: str, url: str, words: str, advice: str, service: modal_stand_in.Service
) -> None:
    service.trouble = trouble
    with pytest.raises(torch_remote.ConnectionError) as raised:
        torch_remote.connect(url)
    text = str(raised.value)
    assert words in text and advice in text.partition("What to do: ")[2]
    assert text.startswith(url) and "\n" not in text


def test_a_service_that_does_not_answer_and_a_missing_token_are_told_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    code = """
        import time, modal, torch_remote
        from torch_remote import providers
        from torch_remote.providers import Endpoint
        provider = providers.find_provider("modal")
        for call in (
            lambda: torch_remote.connect("modal://T4"),
            lambda: provider.state(Endpoint("modal://", handle="sb-1")),
            lambda: provider.stop(Endpoint("modal://", handle="sb-1")),
            provider.machines,
        ):
            begin = time.monotonic()
            try:
                print(call())
            except torch_remote.ConnectionError as error:
                print(error)
            assert time.monotonic() - begin < 40  # the SDK alone takes 56 s
    """
    done = run_python(code, MODAL_SERVER_URL=f"http://127.0.0.1:{port}")
    assert done.stdout.count(f"nothing answers at 127.0.0.1:{port}") == 4, done.stderr
    done = run_python(code, MODAL_TOKEN_ID="")
    assert done.stdout.count("run `modal token new`") == 3, done.stderr


def test_a_machine_that_is_taken_away_is_a_lost_session_with_the_cause(
    service: modal_stand_in.Service,
) -> None:
    code = """
        import torch, torch_remote
        machine = torch_remote.connect("modal://A100-40GB")
        model = torch.nn.Linear(4, 1).to(machine.devices[0])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        print("ready", flush=True)
        try:
            while True:
                optimizer.zero_grad()
                model(torch.ones(2, 4, device=machine.devices[0])).sum().backward()
                optimizer.step()
                torch.cuda.is_available()
                next(model.parameters()).sum().item()
        except torch_remote.SessionLost as error:
            print(str(error).replace(chr(10), " "))
        machine.stop()
    """
    with subprocess.Popen(
        [sys.executable, "-c", "\n".join(line[8:] for line in code.splitlines())],
        env={**os.environ, "TORCH_REMOTE_PATIENCE": "2s", "TORCH_REMOTE_LOG": "error"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "ready\n"
        only(service).end()
        said, errors = client.communicate(timeout=DEADLINE)
    assert "Modal has preempted it" in said and "from your last checkpoint" in said, said + errors
    assert client.returncode == 0


@pytest.mark.parametrize("trouble", ["slow", "capacity"])
def test_ctrl_c_while_launching_leaves_nothing(
    trouble: str, service: modal_stand_in.Service
) -> None:
    service.trouble = trouble
    client = subprocess.Popen(
        [sys.executable, "-c", "import torch_remote; torch_remote.connect('modal://T4')"],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert wait_until(lambda: len(service.sandboxes) == 1)
    sandbox = only(service)
    client.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in client.communicate(timeout=DEADLINE)[1]
    assert sandbox.process.poll() is not None and sandbox.is_terminated


def test_a_machine_whose_client_is_killed_ends_by_itself(
    service: modal_stand_in.Service,
) -> None:
    code = """
        import contextlib, os, torch_remote
        for idle in ("3s", "10s", "40s"):  # a busy machine may connect too late
            with contextlib.suppress(torch_remote.ConnectionError):
                torch_remote.connect(f"modal://T4?idle={idle}&lease=1s")
                os.kill(os.getpid(), 9)
    """
    run_python(code)
    last = list(service.sandboxes.values())[-1].process
    assert wait_until(lambda: last.poll() is not None)
    assert last.returncode == 0  # by itself
    (noted,) = _running.read_all()
    assert noted.is_forgotten
    _running.forget(noted.name)


def test_the_scripts_for_users_run_on_a_machine_of_modal(service: modal_stand_in.Service) -> None:
    for words in (["example_device_usage.py"], ["-m", "unittest", "-q", "test_torch_remote"]):
        service.sandboxes.clear()
        done = subprocess.run(
            [sys.executable, *words],
            cwd=ROOT,
            env={**os.environ, "TORCH_REMOTE": "modal://auto?memory=30GiB"},
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert only(service).is_terminated


def test_a_machine_of_up_outlives_programs_until_down(service: modal_stand_in.Service) -> None:
    up = [sys.executable, "-m", "torch_remote_cli", "up", "modal://T4", "--name", "box"]
    done = subprocess.run(up, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0 and "box runs. `torch-remote down box` ends" in done.stdout, done
    for _ in range(2):
        with torch_remote.connect("box") as machine:
            assert torch.ones(2, device=machine.devices[0]).sum().item() == 2
    (listed,) = [each for each in _kept.listed(everywhere=True) if each.provider == "modal"]
    assert (listed.name, listed.state, listed.endpoint.usd_per_hour) == ("box", "running", 0.59)
    assert "listening on" in _kept.logs(listed)
    _kept.down(listed)
    assert only(service).is_terminated
    service.sandboxes.clear()  # Modal forgets sandboxes that have ended
    _kept.down(listed)
    assert "has ended" in torch_remote.providers.find_provider("modal").state(listed.endpoint)
    with pytest.raises(ValueError, match="cpu=x must be a number of cores"):
        torch_remote.connect("modal://T4?cpu=x")


def test_torch_modal_uses_modal_and_falls_back(service: modal_stand_in.Service) -> None:
    code = """
        import logging; logging.basicConfig(level=logging.INFO)
        import torch, torch_modal, torch_remote
        a, b = torch.ones(2, device="modal:0"), torch.ones(2, device="modal:1")
        print(a.sum().item(), b.sum().item(), len(torch_remote.machines()))
        print([each.status()["url"].partition(":")[0] for each in torch_remote.machines()])
        torch_modal.disable_remote_execution()
        print(a.tolist(), torch_remote.machines()[0].status()["url"])
        torch_modal.enable_remote_execution()
        print(b.tolist(), torch_remote.machines()[0].status()["url"].partition(":")[0])
    """
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "2.0 2.0 2",
        "['tls', 'tls']",
        "[1.0, 1.0] local",
        "[1.0, 1.0] tls",
    ]
    assert "2.10 USD an hour" in done.stderr
    assert service.apps[-1] == "torch-modal-extension"
    assert len(service.sandboxes) == 2  # one for both devices, one after the switch back
    assert all(each.is_terminated for each in service.sandboxes.values())
    service.sandboxes.clear()
    service.trouble = "quota"
    code = "import torch, torch_modal; print(torch.ones(2, device='modal').sum().item())"
    done = run_python(code)
    assert done.stdout.strip() == "2.0", done.stderr
    assert "calls run on the embedded server, for Modal failed: " in done.stderr
    assert run_python(code, TORCH_REMOTE="local").stderr == ""
