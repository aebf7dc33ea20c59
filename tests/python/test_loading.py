"""torch.load with every map_location: where storages go, what stays shared, what is uploaded."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import assert_same

import torch_remote

# map_location -> where a storage saved from (the CPU, remote) goes.
TARGETS: dict[str, tuple[Any, tuple[str, str]]] = {
    "none": (None, ("cpu", "remote")),
    "cpu": ("cpu", ("cpu", "cpu")),
    "remote": ("remote", ("remote", "remote")),
    "remote:0": ("remote:0", ("remote", "remote")),
    "device": (torch.device("remote"), ("remote", "remote")),
    "device:0": (torch.device("remote", 0), ("remote", "remote")),
    "cpu device": (torch.device("cpu"), ("cpu", "cpu")),
    "dict from remote": ({"remote:0": "cpu"}, ("cpu", "cpu")),
    "dict to remote": ({"cpu": "remote:0"}, ("remote", "remote")),
    "same": (lambda storage, location: storage, ("cpu", "cpu")),
    "move": (lambda storage, location: storage.remote(), ("remote", "remote")),
    "default": (lambda storage, location: None, ("cpu", "remote")),
}


def saved(value: Any, **options: Any) -> io.BytesIO:
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    buffer.seek(0)
    return buffer


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("target", TARGETS)
def test_storages_go_where_map_location_says_and_views_stay_views(
    target: str, zipped: bool, weights_only: bool
) -> None:
    location, expected = TARGETS[target]
    for source, device in zip(("cpu", "remote"), expected, strict=True):
        base = torch.arange(12.0, device=source)
        file = saved([base, base[2:5], base.view(3, 4).t()], _use_new_zipfile_serialization=zipped)
        loaded = torch.load(file, map_location=location, weights_only=weights_only)
        assert [each.device.type for each in loaded] == [device] * 3
        assert_same(loaded, [t.cpu() for t in (base, base[2:5], base.view(3, 4).t())])
        loaded[0].zero_()
        assert loaded[1].sum().item() == 0 and loaded[2].sum().item() == 0


@pytest.mark.parametrize("size", [1000, 100_000, 1_000_000])
def test_loading_uploads_each_storage_once(size: int) -> None:
    base = torch.randn(size)
    for source in (base, base.to("remote")):
        file = saved([source, source[5:], source.view(2, -1)])
        with torch_remote.count() as counted:
            loaded = torch.load(file, map_location="remote")
        assert base.nbytes <= counted.bytes_sent < base.nbytes * 1.01 + 500
        assert counted.calls == 0 and counted.bytes_received < 1000
        assert_same(loaded[1], base[5:])


def test_loading_a_model_uploads_its_bytes_once() -> None:
    def make() -> torch.nn.Module:
        return torch.nn.TransformerEncoderLayer(64, 4, 256)

    file = saved(make().state_dict())
    model = make().to("remote")
    total = sum(t.nbytes for t in model.state_dict().values())
    with torch_remote.count() as counted:
        model.load_state_dict(torch.load(file, map_location="remote"))
    assert total <= counted.bytes_sent < 1.1 * total


def test_a_mapped_file_is_loaded_to_the_device(tmp_path: Path) -> None:
    x = torch.arange(100.0)
    for source in (x, x.to("remote")):
        torch.save([source, source[3:]], tmp_path / "x.pt")
        loaded = torch.load(tmp_path / "x.pt", mmap=True, map_location="remote")
        assert loaded[0].device.type == "remote"
        assert_same(loaded, [x, x[3:]])


def test_a_default_device_does_not_move_what_is_loaded() -> None:
    file = saved([torch.arange(3.0), torch.arange(3.0, device="remote")])
    with torch.device("remote"):
        loaded = torch.load(file)
    assert [each.device.type for each in loaded] == ["cpu", "remote"]


def test_a_device_that_does_not_exist_is_refused_with_a_sentence() -> None:
    with pytest.raises(RuntimeError, match=r"device 9 but torch\.remote\.device_count\(\) is 1"):
        torch.load(saved(torch.ones(2)), map_location="remote:9")


def test_a_tensor_with_attributes_a_parameter_and_a_bundle_survive() -> None:
    x = torch.nn.Parameter(torch.ones(2, device="remote"), requires_grad=False)
    y = torch.ones(2, device="remote").conj()
    z = torch.complex(torch.ones(2), torch.ones(2)).to("remote").conj()
    loaded = torch.load(saved({"x": x, "y": [y, (z, 3)]}))
    assert isinstance(loaded["x"], torch.nn.Parameter) and not loaded["x"].requires_grad
    assert_same(loaded["y"], [y.cpu(), (z.cpu().resolve_conj(), 3)])


COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
    "save": lambda value: torch.load(saved(value), weights_only=False),
}


@pytest.mark.parametrize("how", COPIES)
def test_copies_are_independent_and_tied_weights_stay_tied(how: str) -> None:
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(3, 3), "b": torch.nn.Linear(3, 3)})
    model["b"].weight = model["a"].weight
    model.to("remote")
    copied = COPIES[how](model)
    assert copied["b"].weight is copied["a"].weight
    assert copied["a"].weight.device.type == "remote"
    before = model["a"].weight.cpu()
    with torch.no_grad():
        copied["a"].weight.zero_()
    assert_same(model["a"].weight, before)
    assert copied["b"].weight.abs().sum().item() == 0


def test_deepcopy_stays_on_the_server() -> None:
    model = torch.nn.Linear(300, 300).to("remote")
    with torch_remote.count() as counted:
        copied = copy.deepcopy(model)
    assert counted.syncs == 0 and counted.bytes_sent < 5000
    assert_same(copied.weight, model.weight.cpu())


def test_generators_and_random_states_survive() -> None:
    generator = torch.Generator("remote").manual_seed(3)
    torch.randn(5, device="remote", generator=generator)
    state = torch.load(saved(generator.get_state()))
    expected = torch.randn(5, device="remote", generator=generator)
    other = torch.Generator("remote")
    other.set_state(state)
    assert_same(torch.randn(5, device="remote", generator=other), expected.cpu())
