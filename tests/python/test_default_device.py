"""torch.set_default_device, `with torch.device(...)`, and modules made on the meta device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from helpers import assert_same

import torch_remote

FACTORIES: dict[str, Callable[[], Any]] = {
    "ones": lambda: torch.ones(3),
    "tensor": lambda: torch.tensor([1.0]),
    "as_tensor": lambda: torch.as_tensor([1, 2]),
    "asarray": lambda: torch.asarray([1.0]),
    "arange": lambda: torch.arange(3),
    "randn": lambda: torch.randn(2),
    "rand_like": lambda: torch.rand_like(torch.ones(2)),
    "randint": lambda: torch.randint(0, 3, (2,)),
    "randperm": lambda: torch.randperm(4),
    "normal": lambda: torch.normal(0.0, 1.0, (2,)),
    "empty": lambda: torch.empty(2),
    "empty_strided": lambda: torch.empty_strided((2,), (1,)),
    "full": lambda: torch.full((2,), 1.0),
    "eye": lambda: torch.eye(3),
    "linspace": lambda: torch.linspace(0, 1, 3),
    "logspace": lambda: torch.logspace(0, 1, 3),
    "indices": lambda: torch.tril_indices(3, 3),
    "window": lambda: torch.hann_window(4),
    "frequencies": lambda: torch.fft.fftfreq(3),
    "module": lambda: torch.nn.Linear(2, 2).weight,
    "buffer": lambda: torch.nn.BatchNorm1d(2).running_mean,
    "legacy": lambda: torch.Tensor([1.0]),
    "numpy": lambda: torch.from_numpy(np.ones(2)),
    "buffer of bytes": lambda: torch.frombuffer(bytearray(8), dtype=torch.float32),
    "explicit": lambda: torch.ones(2, device="cpu"),
}


@pytest.fixture
def default_device() -> Iterator[None]:
    torch.set_default_device("remote")
    yield
    torch.set_default_device(None)


@pytest.mark.parametrize("factory", FACTORIES)
def test_a_block_moves_what_it_moves_for_every_device(factory: str) -> None:
    with torch.device("meta"):
        is_moved = FACTORIES[factory]().is_meta
    with torch.device("remote"):
        made = FACTORIES[factory]()
    assert made.device.type == ("remote" if is_moved else "cpu")


def test_a_default_device_holds_until_it_is_changed(default_device: None) -> None:
    assert torch.get_default_device() == torch.device("remote", 0)
    assert torch.ones(2).device == torch.device("remote", 0)
    with torch.device("cpu"):
        assert torch.ones(2).device.type == "cpu"
    model = torch.nn.TransformerEncoderLayer(8, 2)
    model(torch.randn(3, 2, 8)).sum().backward()
    torch.optim.AdamW(model.parameters()).step()
    torch.set_default_device("cpu")
    assert torch.ones(2).device.type == "cpu"


def test_training_under_a_default_device_is_that_of_the_cpu() -> None:
    def train(device: str) -> dict[str, torch.Tensor]:
        torch.manual_seed(3)
        with torch.device(device):
            model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.3))
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.rand(5, 4)).square().sum().backward()
                optimizer.step()
        return dict(model.state_dict())

    assert_same(train("remote"), train("cpu"))


def test_modules_made_on_meta_get_memory_and_values() -> None:
    def make(device: str) -> torch.nn.Sequential:
        with torch.device("meta"):
            model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
        model.to_empty(device=device)
        torch.manual_seed(2)
        for layer in model:
            layer.reset_parameters()
        return model

    with torch_remote.count() as counted:
        there = make("remote")
    assert counted.syncs == 0 and counted.bytes_sent < 3000
    assert_same(dict(there.state_dict()), dict(make("cpu").state_dict()))
    x = torch.ones(2, 3)
    assert_same(there(x.to("remote")).detach(), make("cpu")(x).detach())
    with pytest.raises(NotImplementedError, match="to_empty"):
        torch.nn.Linear(2, 2, device="meta").to("remote")
    skipped = torch.nn.utils.skip_init(torch.nn.Linear, 2, 2, device="remote")
    assert skipped.weight.device.type == "remote"
