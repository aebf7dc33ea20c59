"""The Ray provider, on a real cluster of two nodes whose GPUs are only declared.

Ray listens on every interface, so these tests run only in a network namespace that has nothing but
`lo`: `make test-providers` makes one.
"""

from __future__ import annotations

import copy
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from helpers import DEADLINE, is_alive, run_python, wait_until
from torch import nn

import torch_remote
from torch_remote import _kept, _running

ray = pytest.importorskip("ray", reason="Ray is not installed")
if [name for _, name in socket.if_nameindex()] != ["lo"]:
    pytest.skip("Ray would listen beyond loopback here", allow_module_level=True)

COMMAND = f"command={sys.executable}%20-m%20torch_remote_cli"
CLUSTER = Path(__file__).parent / "ray_cluster.py"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, subprocess.Popen]]:
    """The URL of the cluster with the command to run, and the process that holds it."""
    folder = tmp_path_factory.mktemp("ray")
    (folder / "token").write_text(secrets.token_hex(32))
    settings = {
        "RAY_AUTH_TOKEN_PATH": str(folder / "token"),
        "RAY_USAGE_STATS_ENABLED": "0",
        "XDG_STATE_HOME": str(folder / "state"),
        "TORCH_REMOTE_PROGRESS": "0",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        with (folder / "log").open("w") as log:
            made = subprocess.Popen(
                [sys.executable, CLUSTER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert made.stdout is not None
        address = made.stdout.readline().strip()
        assert address, (folder / "log").read_text()
        patch.setenv("RAY_ADDRESS", address)
        yield f"ray://{address}?{COMMAND}", made
        ray.shutdown()
        made.communicate(timeout=DEADLINE)


WIDTH, ROWS, STEPS = 8, 8192, 4
ACTIVATIONS = WIDTH * ROWS * 4  # bytes between two layers


def train(devices: list[torch.device]) -> list[torch.Tensor]:
    """A model whose layers are on the devices in turn. Returns its parameters."""
    torch.manual_seed(3)
    layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in devices)
    for layer, device in zip(layers, devices, strict=True):
        layer.to(device)
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.05)
    inputs = torch.linspace(-1, 1, WIDTH * ROWS).reshape(ROWS, WIDTH).to(devices[0])
    for _ in range(STEPS):
        x = inputs
        for layer, device in zip(layers, devices, strict=True):
            x = layer(x.to(device)).tanh()
        optimizer.zero_grad()
        x.square().mean().backward()
        optimizer.step()
    return [each.detach() for each in layers.parameters()]


def train_together(devices: list[torch.device]) -> list[list[torch.Tensor]]:
    """A copy of one model on each device, each with its part of the data. The gradients are added
    up between the servers. Returns the parameters of each copy."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
    copies = [copy.deepcopy(model).to(device) for device in devices]
    parts = torch.linspace(-1, 1, 32 * WIDTH).reshape(32, WIDTH).chunk(len(devices))
    inputs = [part.to(device) for part, device in zip(parts, devices, strict=True)]
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.05) for each in copies]
    for _ in range(STEPS):
        for one, part in zip(copies, inputs, strict=True):
            one.zero_grad()
            one(part).square().sum().backward()
        for parameters in zip(*(one.parameters() for one in copies), strict=True):
            gradients = [each.grad for each in parameters if each.grad is not None]
            if devices[0].type == "cpu":
                total = torch.stack(gradients).sum(0)
                for gradient in gradients:
                    gradient.copy_(total)
            else:
                torch_remote.distributed.all_reduce(gradients)
        for optimizer in optimizers:
            optimizer.step()
    return [[each.detach().cpu() for each in one.parameters()] for one in copies]


def test_four_devices_on_two_nodes_train_one_model(cluster: tuple[str, object]) -> None:
    url, _ = cluster
    local = [torch.device("cpu")] * 4
    with torch_remote.connect(f"{url}&num_gpus=4&idle=5m") as machine:
        assert len(machine.devices) == 4
        assert all(str(device) in repr(machine) for device in machine.devices)
        (listed,) = _kept.listed(everywhere=False)
        assert (listed.provider, listed.state) == ("ray", "running")
        with torch_remote.count() as counted:
            trained = train(machine.devices)
            torch_remote.synchronize()
        assert counted.bytes_sent < 2 * ACTIVATIONS  # the inputs; the rest goes between the servers
        assert counted.bytes_received < ACTIVATIONS
        for ours, theirs in zip(trained, train(local), strict=True):
            assert torch.equal(ours.cpu(), theirs)
        first, *others = train_together(machine.devices)
        for other in others:
            assert all(map(torch.equal, first, other))
        for ours, theirs in zip(first, train_together(local)[0], strict=True):
            torch.testing.assert_close(ours, theirs)  # Gloo adds in another order
        hosts = {each["NodeManagerAddress"] for each in ray.nodes() if each["Alive"]}
        assert len(hosts) == 2
        pids = [int(each["pid"]) for each in servers_of(machine)]
        assert len(pids) == 4 and all(is_alive(pid) for pid in pids)
        words = Path(f"/proc/{pids[0]}/cmdline").read_bytes()
        assert b"--parent-pid" in words or b"--session-fd" in words
        assert (
            machine.status()["provider"] == "ray" and len(machine.status()["actors"].split()) == 4
        )
        assert isinstance(machine.logs(), str)
        # Four more do not come: the launch gives up by itself.
        with pytest.raises(torch_remote.ConnectionError, match=r"no room within 2 s.*wait=1h"):
            torch_remote.connect(f"{url}&num_gpus=1&wait=2s")
    assert wait_until(lambda: not any(is_alive(pid) for pid in pids))
    assert wait_until(lambda: ray.available_resources().get("GPU") == 4)
    assert _running.read_all() == []


def servers_of(machine: torch_remote.Machine) -> list[dict[str, str]]:
    from torch_remote import _C, _launch

    return [dict(_C.machine_info(each)) for each in (machine.id, *_launch.others_of(machine.id))]


def test_a_gpu_is_asked_for_by_name_and_wrong_ones_are_told(cluster: tuple[str, object]) -> None:
    url, _ = cluster
    with torch_remote.connect(f"{url}&gpu=H100") as machine:
        assert machine.status()["url"].startswith("tls://127.0.0.3:")
    with pytest.raises(ValueError, match=r"'H900'. Valid types: \['A100', 'H100'\]"):
        torch_remote.connect(f"{url}&gpu=H900")
    with pytest.raises(torch_remote.ConnectionError, match=r"the cluster has 4.*What to do: "):
        torch_remote.connect(f"{url}&num_gpus=5")
    with pytest.raises(torch_remote.ConnectionError, match=r"No such file.*name it with command="):
        torch_remote.connect(url.partition("?")[0] + "?command=/nowhere/torch-remote")
    assert wait_until(lambda: ray.available_resources().get("GPU") == 4)


def test_an_address_where_nothing_listens_is_told_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    done = run_python(f"import torch_remote; torch_remote.connect('ray://127.0.0.1:{port}')")
    assert "nothing answers" in done.stderr and "ray start --head" in done.stderr.splitlines()[-1]


LAUNCH = """
import sys, torch_remote
machine = torch_remote.connect(sys.argv[1])
print(machine.status()["pid"], flush=True)
input()
"""


def test_sigkill_of_the_client_leaves_no_server(cluster: tuple[str, object]) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LAUNCH, cluster[0]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as client:
        assert client.stdout is not None
        pid = int(client.stdout.readline())
        client.send_signal(signal.SIGKILL)
    assert wait_until(lambda: not is_alive(pid))
    assert wait_until(lambda: ray.available_resources().get("GPU") == 4)


def test_ctrl_c_while_queued_leaves_nothing(cluster: tuple[str, object]) -> None:
    url, _ = cluster
    with torch_remote.connect(f"{url}&num_gpus=4"):
        client = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, url],
            env={**os.environ, "TORCH_REMOTE_PROGRESS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        assert client.stderr is not None
        assert "queued" in client.stderr.readline()
        client.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in client.communicate(timeout=DEADLINE)[1]
    assert wait_until(lambda: ray.available_resources().get("GPU") == 4)


def test_a_machine_of_up_outlives_programs_until_down(cluster: tuple[str, object]) -> None:
    url, _ = cluster
    up = [sys.executable, "-m", "torch_remote_cli", "up", f"{url}&num_gpus=2", "--name", "box"]
    done = subprocess.run(up, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    with torch_remote.connect("box") as machine:
        assert [torch.ones(2, device=each).sum().item() for each in machine.devices] == [2, 2]
        pids = [int(each["pid"]) for each in servers_of(machine)]
    (listed,) = [each for each in _kept.listed(everywhere=True) if each.provider == "ray"]
    assert (listed.name, listed.state) == ("box", "running")
    _kept.down(listed)
    assert wait_until(lambda: not any(is_alive(pid) for pid in pids))
    assert wait_until(lambda: ray.available_resources().get("GPU") == 4)


def test_a_machine_of_up_that_ends_itself_gives_its_gpus_back(cluster: tuple[str, object]) -> None:
    url, _ = cluster
    with torch_remote.connect(f"{url}&num_gpus=1"):  # a program's own machine is left alone
        made = _kept.up(f"{url}&num_gpus=2&idle=3601s", "box")
        for process in Path("/proc").glob("[0-9]*"):  # as if `idle` were over
            with suppress(OSError):
                if b"\x003601s\x00" in (process / "cmdline").read_bytes():
                    os.kill(int(process.name), signal.SIGTERM)
        assert wait_until(lambda: ray.available_resources().get("GPU") == 3)
        (listed,) = [each for each in _kept.listed(everywhere=False) if each.name == "box"]
        assert listed.state == "ended"
        words = r"2 of 2 actors have died.*`torch-remote down box` forgets it"
        with pytest.raises(torch_remote.ConnectionError, match=words):
            torch_remote.connect("box")
        assert made.label != "box" and _running.find("box") is not None
        _kept.down(listed)
    assert _running.read_all() == []


def test_a_second_cluster_is_not_taken_for_the_first(cluster: tuple[str, object]) -> None:
    url, _ = cluster
    words = "Ray allows one for each process"
    with torch_remote.connect(url), pytest.raises(torch_remote.ConnectionError, match=words):
        torch_remote.connect("ray://127.0.0.9:6379")


def test_a_node_that_is_taken_away_is_a_lost_session_with_the_cause(
    cluster: tuple[str, subprocess.Popen],
) -> None:
    """The last test: the cluster has one node afterwards."""
    url, process = cluster
    code = f"""
        import sys, torch, torch_remote
        machine = torch_remote.connect({url + "&gpu=H100"!r})
        x = torch.ones(2, device=machine.devices[0])
        print("ready", x.sum().item(), flush=True)
        input()
        try:
            while True:
                x.sum().item()
        except torch_remote.SessionLost as error:
            print(str(error).replace(chr(10), " "))
        machine.stop()
    """
    with subprocess.Popen(
        [sys.executable, "-c", "\n".join(line[8:] for line in code.splitlines())],
        env={**os.environ, "TORCH_REMOTE_PATIENCE": "10s", "TORCH_REMOTE_LOG": "error"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as client:
        assert client.stdout is not None and process.stdin is not None
        first = client.stdout.readline()
        assert first.startswith("ready"), first + client.communicate(timeout=DEADLINE)[1]
        process.stdin.write("remove\n")
        process.stdin.flush()
        assert process.stdout is not None and process.stdout.readline() == "removed\n"
        said, errors = client.communicate("\n", timeout=DEADLINE)
    assert "1 of 1 actors has died" in said and "from your last checkpoint" in said, said + errors
