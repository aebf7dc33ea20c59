"""`nn.DataParallel` does not move CPU models, and spreads remote ones over remote devices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from helpers import assert_runs, serving
from torch.nn.parallel import comm, gather, replicate, scatter

import torch_remote

pytestmark = pytest.mark.slow


def model() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU())


def batch() -> torch.Tensor:
    return torch.arange(24.0).reshape(6, 4)


@pytest.fixture(scope="module")
def devices(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[torch.device]]:
    folder: Path = tmp_path_factory.mktemp("server")
    with (
        serving(f"unix://{folder}/s", "--devices", "2") as url,
        torch_remote.connect(url) as machine,
    ):
        yield machine.devices


def test_a_cpu_model_is_called_directly_as_without_the_import() -> None:
    said = assert_runs("""
        import torch, torch_remote
        inner = torch.nn.Linear(2, 2)
        wrapped = torch.nn.DataParallel(inner)
        x = torch.ones(3, 2, requires_grad=True)
        y = wrapped(x)
        y.sum().backward()
        print(wrapped.device_ids, y.device, x.grad.device, next(inner.parameters()).device)
        print(torch.equal(y, inner(x)), torch.remote.is_initialized())
        print(torch.nn.DataParallel(torch.nn.ReLU())(x).device)
    """)
    assert said.splitlines() == ["[] cpu cpu cpu", "True False", "cpu"]


def test_a_cpu_model_does_not_connect_to_a_configured_machine() -> None:
    assert_runs(
        """
        import torch, torch_remote
        torch.nn.DataParallel(torch.nn.Linear(2, 2))(torch.ones(3, 2))
        """,
        TORCH_REMOTE="tcp://127.0.0.1:1",
    )


@pytest.mark.parametrize("where", ["cpu", "remote:0"])
def test_one_device_calls_the_module_on_inputs_moved_there(where: str) -> None:
    expected = model()
    y = expected(batch())
    y.sum().backward()
    inner = model().to("remote")
    wrapped = torch.nn.DataParallel(inner, device_ids=[0])
    assert wrapped.module is inner
    result = wrapped(batch().to(where))
    result.sum().backward()
    assert result.device == torch.device("remote:0")
    assert torch.equal(result.cpu(), y)
    for mine, other in zip(inner.parameters(), expected.parameters(), strict=True):
        assert torch.equal(mine.grad.cpu(), other.grad)


def test_device_ids_move_a_cpu_model_as_with_one_cuda_device() -> None:
    inner = model()
    wrapped = torch.nn.DataParallel(inner, device_ids=["remote:0"])
    assert next(inner.parameters()).is_remote
    assert wrapped(batch()).is_remote


def test_a_model_moved_after_it_was_wrapped_runs_where_it_is() -> None:
    said = assert_runs("""
        import torch, torch_remote
        wrapped = torch.nn.DataParallel(torch.nn.Linear(2, 2)).to("remote")
        print(wrapped(torch.ones(3, 2)).device, wrapped.device_ids)
        print(list(wrapped.state_dict()))
    """)
    assert said.splitlines() == ["remote:0 [0]", "['module.weight', 'module.bias']"]


def test_gradients_reach_an_input_on_the_cpu() -> None:
    inner = torch.nn.Linear(4, 2).to("remote")
    x = batch().requires_grad_()
    with pytest.warns(FutureWarning, match="-1"):  # PyTorch's own, as with CUDA
        torch.nn.DataParallel(inner, device_ids=[0])(x).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, inner.weight.detach().cpu().sum(0).expand(6, 4))


def test_several_devices_compute_what_one_does(devices: list[torch.device]) -> None:
    ids = [device.index for device in devices]
    expected = torch.nn.Linear(4, 3)
    expected(batch()).square().sum().backward()
    inner = torch.nn.Linear(4, 3)
    inner.load_state_dict(expected.state_dict())
    inner.to(devices[0])
    for x in (batch(), batch().to(devices[0])):
        inner.zero_grad()
        result = torch.nn.DataParallel(inner, device_ids=ids)(x)
        result.square().sum().backward()
        assert result.device == devices[0]
        torch.testing.assert_close(result.detach().cpu(), expected(batch()).detach())
        torch.testing.assert_close(inner.weight.grad.cpu(), expected.weight.grad)


def test_buffers_of_the_first_replica_are_the_models(devices: list[torch.device]) -> None:
    inner = model().to(devices[0])
    wrapped = torch.nn.DataParallel(inner, device_ids=devices)
    wrapped(batch())
    assert inner[1].num_batches_tracked.item() == 1
    with torch.no_grad():
        wrapped(batch())
    assert inner[1].num_batches_tracked.item() == 2


def test_the_functions_it_is_made_of(devices: list[torch.device]) -> None:
    ids = [device.index for device in devices]
    parts = scatter({"x": batch(), "name": "n"}, ids)
    assert [part["x"].device for part in parts] == devices
    assert torch.equal(gather([part["x"] for part in parts], ids[0]).cpu(), batch())
    assert gather([part["x"] for part in parts], "cpu").device.type == "cpu"
    copies = replicate(torch.nn.Linear(4, 2).to(devices[0]), ids)
    assert [copy.weight.device for copy in copies] == devices
    outs = [torch.empty(6, 4, device=device) for device in devices]
    comm.broadcast(batch(), out=outs)
    assert torch.equal(outs[1].cpu(), batch())
    total = comm.reduce_add(outs, ids[0])
    assert torch.equal(total.cpu(), batch() * 2)
    halves = [torch.empty(2, 4, device=devices[0]), torch.empty(4, 4, device=devices[1])]
    comm.scatter(batch(), out=halves)
    assert torch.equal(halves[1].cpu(), batch()[2:])
    assert torch.equal(comm.gather(halves, out=torch.empty(6, 4)), batch())
    spectrum = scatter(torch.fft.rfft(batch()), ids)
    assert spectrum[0].is_complex()


def test_replicas_run_under_the_callers_autocast(devices: list[torch.device]) -> None:
    inner = torch.nn.Linear(4, 4, device=devices[0])
    wrapped = torch.nn.DataParallel(inner, devices)
    x = batch().to(devices[0])
    with torch.autocast("remote"):
        assert torch.equal(wrapped(x), inner(x))
        assert wrapped(x).dtype == torch.float16
    assert wrapped(x).dtype == torch.float32
