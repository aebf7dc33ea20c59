"""Saving, loading and copying objects that contain remote tensors."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from helpers import DEVICE, assert_same

HERE = torch.device(DEVICE)


def saved_and_loaded(value: Any, **options: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, **options)


def model(device: str) -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).to(device)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64], ids=str
)
def test_a_tensor_is_loaded_where_it_was(dtype: torch.dtype) -> None:
    tensor = torch.arange(6).reshape(2, 3).to(dtype)
    loaded = saved_and_loaded(tensor.to(DEVICE))
    assert loaded.device.type == HERE.type
    assert_same(loaded, tensor)


@pytest.mark.parametrize("target", ["cpu", DEVICE, torch.device(DEVICE)], ids=str)
def test_map_location_decides(target: Any) -> None:
    tensor = torch.arange(6.0)
    for source in (tensor, tensor.to(DEVICE)):
        loaded = saved_and_loaded(source, map_location=target)
        assert loaded.device.type == torch.device(target).type
        assert_same(loaded, tensor)


def test_a_map_location_function_decides() -> None:
    loaded = saved_and_loaded(
        torch.arange(3.0).to(DEVICE), map_location=lambda storage, location: storage.cpu()
    )
    assert_same(loaded, torch.arange(3.0))
    assert loaded.device.type == "cpu"


def test_views_and_shared_storage_survive() -> None:
    base = torch.arange(12.0, device=DEVICE).reshape(3, 4)
    loaded_base, loaded_view = saved_and_loaded([base, base.t()[1:]])
    assert_same(loaded_view, torch.arange(12.0).reshape(3, 4).t()[1:])
    loaded_base.zero_()
    assert loaded_view.sum().item() == 0


def test_a_zero_sized_tensor_survives() -> None:
    assert saved_and_loaded(torch.empty(0, 3, device=DEVICE)).shape == (0, 3)


def test_requires_grad_and_parameters_survive() -> None:
    assert saved_and_loaded(torch.ones(2, device=DEVICE, requires_grad=True)).requires_grad
    parameter = torch.nn.Parameter(torch.ones(2, device=DEVICE))
    assert isinstance(saved_and_loaded(parameter), torch.nn.Parameter)


def test_pickle_and_the_legacy_format_work() -> None:
    tensor = torch.arange(5.0)
    assert_same(pickle.loads(pickle.dumps(tensor.to(DEVICE))), tensor)
    buffer = io.BytesIO()
    torch.save(tensor.to(DEVICE), buffer, _use_new_zipfile_serialization=False)
    buffer.seek(0)
    assert_same(torch.load(buffer), tensor)


def test_deepcopy_is_independent_and_keeps_sharing() -> None:
    base = torch.arange(6.0, device=DEVICE)
    copied, view = copy.deepcopy([base, base[2:]])
    base.zero_()
    assert copied.tolist() == [0, 1, 2, 3, 4, 5]
    copied.fill_(9)
    assert view.tolist() == [9] * 4


def test_a_state_dict_moves_between_devices() -> None:
    ours, cpus = model(DEVICE), model("cpu")
    assert_same(dict(ours.state_dict()), dict(cpus.state_dict()))
    for device, state in ((DEVICE, cpus.state_dict()), ("cpu", ours.state_dict())):
        fresh = model(device)
        torch.nn.init.zeros_(fresh[0].weight)
        fresh.load_state_dict(saved_and_loaded(state))
        assert_same(dict(fresh.state_dict()), dict(cpus.state_dict()))


def test_a_whole_module_survives() -> None:
    loaded = saved_and_loaded(model(DEVICE), weights_only=False)
    assert_same(dict(loaded.state_dict()), dict(model("cpu").state_dict()))
    assert_same(dict(copy.deepcopy(loaded).state_dict()), dict(model("cpu").state_dict()))


def test_an_optimizer_resumes_where_it_was() -> None:
    def step(network: torch.nn.Module, optimizer: torch.optim.Optimizer, device: str) -> None:
        optimizer.zero_grad()
        network(torch.ones(5, 3, device=device)).square().sum().backward()
        optimizer.step()

    def run(device: str, resume: bool) -> dict[str, torch.Tensor]:
        network = model(device)
        optimizer = torch.optim.Adam(network.parameters())
        step(network, optimizer, device)
        if resume:
            state = saved_and_loaded([network.state_dict(), optimizer.state_dict()])
            network = model(device)
            optimizer = torch.optim.Adam(network.parameters())
            network.load_state_dict(state[0])
            optimizer.load_state_dict(state[1])
        step(network, optimizer, device)
        return dict(network.state_dict())

    assert_same(run(DEVICE, resume=True), run(DEVICE, resume=False))


def test_storages_copy_in_both_directions() -> None:
    storage = torch.arange(4, dtype=torch.uint8).untyped_storage()
    there = storage.to(device=HERE)
    assert there.device.type == HERE.type
    assert there.cpu().tolist() == [0, 1, 2, 3]
    assert there.clone().cpu().tolist() == [0, 1, 2, 3]
    fresh = torch.UntypedStorage(4, device=HERE)
    fresh.copy_(storage)
    assert fresh.cpu().tolist() == [0, 1, 2, 3]
