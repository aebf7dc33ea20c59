"""Training under autocast with a `GradScaler` equals training with casts by hand on the CPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from amp_lists import cast
from helpers import DEVICE, assert_same
from torch import Tensor, nn

F = nn.functional
FAST = (torch.float16, torch.bfloat16)


class Casting:
    """The functions of the models below. On the CPU they cast by hand what autocast casts."""

    def __init__(self, by_hand: bool, fast: torch.dtype) -> None:
        self.fast = fast if by_hand else None
        self.full = torch.float32 if by_hand else None

    def _called(
        self,
        function: Callable[..., Tensor],
        dtype: torch.dtype | None,
        *given: Any,
        **options: Any,
    ) -> Tensor:
        if dtype is not None:
            given, options = cast((given, options), dtype)
        return function(*given, **options)

    def low(self, function: Callable[..., Tensor], *given: Any, **options: Any) -> Tensor:
        return self._called(function, self.fast, *given, **options)

    def high(self, function: Callable[..., Tensor], *given: Any, **options: Any) -> Tensor:
        return self._called(function, self.full, *given, **options)

    def cross_entropy(self, result: Tensor, target: Tensor) -> Tensor:
        if self.full is None:
            return F.cross_entropy(result, target)
        # PyTorch asks log_softmax for the dtype of its input, which autocast respects.
        return F.nll_loss(F.log_softmax(result, 1).to(self.full), target)


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, stride=2)
        self.norm, self.head = nn.BatchNorm2d(8), nn.Linear(8 * 2 * 2, 5)

    def forward(self, x: Tensor, c: Casting) -> Tensor:
        x = self.norm(c.low(F.conv2d, x, self.first.weight, self.first.bias)).relu()
        x = c.low(F.conv2d, x, self.second.weight, self.second.bias, stride=2).relu()
        return c.low(F.linear, x.flatten(1), self.head.weight, self.head.bias)


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.up, self.down, self.head = nn.Linear(16, 32), nn.Linear(32, 16), nn.Linear(16, 5)
        self.norms = nn.ModuleList([nn.LayerNorm(16), nn.LayerNorm(16)])

    def forward(self, x: Tensor, c: Casting) -> Tensor:
        def linear(layer: Any, x: Tensor) -> Tensor:
            return c.low(F.linear, x, layer.weight, layer.bias)

        def norm(layer: Any, x: Tensor) -> Tensor:
            return c.high(F.layer_norm, x, [16], layer.weight, layer.bias)

        q, k, v = linear(self.qkv, x).unflatten(-1, [3, 2, 8]).permute(2, 0, 3, 1, 4)
        attended = c.low(F.scaled_dot_product_attention, q, k, v).transpose(1, 2).flatten(-2)
        x = norm(self.norms[0], x + linear(self.out, attended))
        x = norm(self.norms[1], x + linear(self.down, F.gelu(linear(self.up, x))))
        return linear(self.head, x.mean(dim=1))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "conv net": (ConvNet, (4, 3, 8, 8)),
    "transformer": (Transformer, (4, 6, 16)),
}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "fused": {"fused": True},
    "foreach": {"foreach": True},
    "loop": {"foreach": False},
}


class Training:
    """A model in training, on the CPU with casts by hand or on the device under autocast."""

    def __init__(self, device: str, name: str, fast: torch.dtype, options: dict[str, Any]) -> None:
        torch.manual_seed(5)
        model, shape = MODELS[name]
        self.model = model().to(device)
        self.data = torch.randn(shape).to(device), torch.randint(5, shape[:1]).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, **options)
        self.scaler = torch.amp.GradScaler(device, init_scale=2.0**10, growth_interval=2)
        self.casting = Casting(device == "cpu", fast)
        self.context = torch.autocast(device, dtype=fast, enabled=device != "cpu")

    def step(self, is_bad: bool = False, clip: float | None = None) -> Tensor:
        self.optimizer.zero_grad()
        with self.context:
            result = self.model(self.data[0], self.casting)
            loss = self.casting.cross_entropy(result, self.data[1])
        self.scaler.scale(loss * float("inf") if is_bad else loss).backward()
        if clip is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.detach()

    def state(self) -> list[Any]:
        return [self.scaler.get_scale(), *self.model.state_dict().values()]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("fast", FAST)
def test_training_equals_training_with_casts_by_hand(
    name: str, kind: str, fast: torch.dtype
) -> None:
    here, there = (Training(device, name, fast, OPTIMIZERS[kind]) for device in ("cpu", DEVICE))
    for number in range(6):
        bad = number == 3
        clip = 0.1 if number == 5 and kind == "loop" else None
        assert_same(there.step(bad, clip), here.step(bad, clip))
        assert_same(there.state(), here.state())


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_infinite_gradients_skip_the_step_and_halve_the_scale(kind: str) -> None:
    training = Training(DEVICE, "conv net", torch.float16, OPTIMIZERS[kind])
    training.step()
    before = [parameter.clone() for parameter in training.model.parameters()]
    scale = training.scaler.get_scale()
    training.step(is_bad=True)
    assert_same(list(training.model.parameters()), before)
    assert training.scaler.get_scale() == scale / 2


@pytest.mark.skipif(DEVICE == "cpu", reason="a CPU never waits")
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("name", MODELS)
def test_a_step_waits_at_most_once(
    name: str, kind: str, sync_count: Callable[[Callable[[], object]], int]
) -> None:
    training = Training(DEVICE, name, torch.float16, OPTIMIZERS[kind])
    syncs = [sync_count(training.step) for _ in range(4)]
    assert syncs == [0 if kind == "fused" else 1] * 4
    assert sync_count(lambda: training.step(clip=1.0)) == syncs[-1]


def test_a_scaler_saves_and_loads_its_state() -> None:
    training = Training(DEVICE, "conv net", torch.float16, {})
    for _ in range(3):
        training.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other = torch.remote.amp.GradScaler()
        other.load_state_dict(training.scaler.state_dict())
    assert other.state_dict() == training.scaler.state_dict()
