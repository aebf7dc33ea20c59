"""torch.nn.utils and torch.optim.swa_utils: the CPU's values, and no waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import assert_same
from torch import nn
from torch.nn import utils
from torch.nn.utils import parametrizations, parametrize, prune, rnn
from torch.optim import swa_utils

import torch_remote

X = torch.linspace(-1, 1, 12).reshape(4, 3)


def with_gradients(device: str) -> nn.Module:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).to(device)
    (model(X.to(device)) * 30).square().sum().backward()
    return model


CLIPS: dict[str, Callable[[Any], Any]] = {
    "norm": lambda p: utils.clip_grad_norm_(p, 1.0, foreach=True),
    "norm 1": lambda p: utils.clip_grad_norm_(p, 1.0, norm_type=1.0, foreach=True),
    "norm inf": lambda p: utils.clip_grad_norm_(p, 1.0, norm_type=float("inf"), foreach=True),
    "loop": lambda p: utils.clip_grad_norm_(p, 1.0, foreach=False),
    "value": lambda p: utils.clip_grad_value_(p, 0.5, foreach=True),
    "parts": lambda p: utils.clip_grads_with_norm_(
        p, 1.0, utils.get_total_norm([each.grad for each in p], foreach=True), foreach=True
    ),
}


@pytest.mark.parametrize("clip", CLIPS)
def test_clipping_gives_the_cpus_gradients_and_does_not_wait(clip: str) -> None:
    def clipped(device: str) -> Any:
        parameters = list(with_gradients(device).parameters())
        return CLIPS[clip](parameters), [p.grad for p in parameters]

    model = with_gradients("remote")
    with torch_remote.count() as counted:
        CLIPS[clip](list(model.parameters()))
    assert counted.syncs == 0
    assert_same(clipped("remote"), clipped("cpu"))


def test_only_error_if_nonfinite_waits_and_it_raises() -> None:
    model = with_gradients("remote")
    with torch_remote.count() as counted:
        utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    assert counted.syncs == 1
    model[0].weight.grad.fill_(float("nan"))
    with pytest.raises(RuntimeError, match="non-finite"):
        utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)


class Symmetric(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.triu() + x.triu(1).t()

    def right_inverse(self, x: torch.Tensor) -> torch.Tensor:
        return x.triu()


def parametrized(layer: nn.Module) -> nn.Module:
    parametrize.register_parametrization(layer, "weight", Symmetric())
    return layer


LAYERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "parametrize": parametrized,
    "weight_norm": parametrizations.weight_norm,
    "weight_norm of all": lambda layer: parametrizations.weight_norm(layer, dim=None),
    "old weight_norm": utils.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "old spectral_norm": utils.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
    "cayley": lambda layer: parametrizations.orthogonal(layer, orthogonal_map="cayley"),
}


@pytest.mark.filterwarnings("ignore")  # the old functions are deprecated
@pytest.mark.parametrize("name", LAYERS)
def test_a_parametrized_layer_trains_as_on_the_cpu(name: str) -> None:
    def train(device: str) -> Any:
        torch.manual_seed(2)
        layer = LAYERS[name](nn.Linear(3, 3)).to(device)
        optimizer = torch.optim.SGD(layer.parameters(), 0.1)
        for _ in range(2):
            optimizer.zero_grad()
            layer(X.to(device)).square().sum().backward()
            optimizer.step()
        return dict(layer.state_dict()), layer.weight.detach()

    assert_same(train("remote"), train("cpu"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_parametrized_on_the_device(name: str) -> None:
    layer = LAYERS[name](nn.Linear(3, 3).to("remote"))
    layer(X.to("remote")).sum().backward()
    assert all(p.device.type == "remote" and p.grad is not None for p in layer.parameters())
    if parametrize.is_parametrized(layer):
        with parametrize.cached():
            layer(X.to("remote"))
        parametrize.remove_parametrizations(layer, "weight")
        assert isinstance(layer.weight, nn.Parameter)


def pruned(device: str) -> Any:
    layer = with_gradients(device)[0]
    prune.l1_unstructured(layer, "weight", 0.3)
    prune.ln_structured(layer, "weight", 0.5, 2, 0)
    mask = layer.weight_mask.clone()
    prune.remove(layer, "weight")
    return layer.weight, mask


def as_vector(device: str) -> Any:
    model = with_gradients(device)
    vector = utils.parameters_to_vector(model.parameters())
    utils.vector_to_parameters(vector * 2, model.parameters())
    return vector, list(model.parameters())


def fused(device: str) -> Any:
    torch.manual_seed(1)
    layers = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)).to(device).eval()
    return utils.fuse_conv_bn_eval(layers[0], layers[1])(torch.ones(1, 1, 5, 5).to(device))


def sequences(device: str) -> Any:
    torch.manual_seed(1)
    parts = [torch.randn(length, 3).to(device) for length in (2, 5, 3)]
    lengths = torch.tensor([2, 5, 3])
    packed = rnn.pack_sequence(parts, enforce_sorted=False)
    padded = rnn.pad_sequence(parts, batch_first=True, padding_value=2.0)
    output, hidden = nn.LSTM(3, 4).to(device)(packed)
    again = rnn.pack_padded_sequence(padded, lengths, batch_first=True, enforce_sorted=False)
    return [
        padded,
        hidden,
        rnn.pad_packed_sequence(output),
        [again.data, again.batch_sizes, again.sorted_indices],
        rnn.unpad_sequence(padded, lengths, batch_first=True),
        rnn.unpack_sequence(packed),
        packed.to(device).data,
        packed.cpu().data,
    ]


CASES = {"prune": pruned, "vector": as_vector, "fuse": fused, "sequences": sequences}


@pytest.mark.parametrize("case", CASES)
def test_other_utilities_give_the_cpus_values(case: str) -> None:
    assert_same(CASES[case]("remote"), CASES[case]("cpu"))


# --- averages of weights

AVERAGES: dict[str, Callable[[nn.Module], swa_utils.AveragedModel]] = {
    "SWA": lambda model: swa_utils.AveragedModel(
        model, multi_avg_fn=swa_utils.get_swa_multi_avg_fn()
    ),
    "SWA one by one": lambda model: swa_utils.AveragedModel(
        model, avg_fn=swa_utils.get_swa_avg_fn()
    ),
    "EMA": lambda model: swa_utils.AveragedModel(
        model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9)
    ),
    "EMA with buffers": lambda model: swa_utils.AveragedModel(
        model, avg_fn=swa_utils.get_ema_avg_fn(0.9), use_buffers=True
    ),
}


def average(device: str, make: Callable[[nn.Module], swa_utils.AveragedModel]) -> Any:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    schedule = swa_utils.SWALR(optimizer, 0.05)
    averaged = make(model)
    for _ in range(4):
        optimizer.zero_grad()
        model(X.to(device)).square().sum().backward()
        optimizer.step()
        averaged.update_parameters(model)
        schedule.step()
    swa_utils.update_bn([X.to(device), X.to(device) + 1], averaged)
    swa_utils.update_bn([X], averaged, device=torch.device(device))
    return dict(averaged.state_dict()), schedule.get_last_lr()


@pytest.mark.parametrize("name", AVERAGES)
def test_averaged_weights_are_the_cpus(name: str) -> None:
    assert_same(average("remote", AVERAGES[name]), average("cpu", AVERAGES[name]))


def test_the_default_average_is_the_foreach_one_as_on_every_accelerator() -> None:
    assert_same(average("remote", swa_utils.AveragedModel), average("cpu", AVERAGES["SWA"]))
