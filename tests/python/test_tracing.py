"""torch.jit.trace, torch.compile and torch.export of modules that use our kernels."""

from __future__ import annotations

import io

import pytest
import torch
from helpers import DEVICE, assert_same
from torch import Tensor, nn
from torch.nn import functional

pytestmark = pytest.mark.slow


def _network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.ConvTranspose2d(4, 2, 2), nn.Conv2d(2, 2, 1)
    )


@pytest.mark.parametrize("with_gradients", [True, False])
def test_a_traced_convolution_computes_for_other_inputs(with_gradients: bool) -> None:
    first, second = torch.randn(1, 3, 8, 8), torch.randn(2, 3, 8, 8)
    net = _network()
    with torch.set_grad_enabled(with_gradients):
        expected = net(second)
        net.to(DEVICE)
        traced = torch.jit.trace(net, first.to(DEVICE))
        assert_same(traced(second.to(DEVICE)), expected)
    assert "aten::_convolution" in str(traced.inlined_graph)


def test_a_traced_convolution_has_gradients_and_can_be_saved() -> None:
    first, second = torch.randn(1, 3, 8, 8), torch.randn(2, 3, 8, 8)
    net = _network()
    net(second).sum().backward()
    expected = [p.grad.clone() for p in net.parameters() if p.grad is not None]
    net.zero_grad()
    traced = torch.jit.trace(net.to(DEVICE), first.to(DEVICE))
    file = io.BytesIO()
    torch.jit.save(traced, file)
    file.seek(0)
    loaded = torch.jit.load(file)
    loaded(second.to(DEVICE)).sum().backward()
    assert_same([p.grad for p in loaded.parameters()], expected)


def test_tracing_does_not_change_what_an_untraced_convolution_sends() -> None:
    net = _network().to(DEVICE)
    value = torch.randn(1, 3, 8, 8, device=DEVICE)
    torch.jit.trace(net, value)
    expected = _network()(value.cpu())
    assert_same(net(value), expected)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_compiled_dropout_draws_and_rounds_as_on_the_cpu(backend: str, p: float) -> None:
    def run(device: str) -> list[Tensor]:
        torch._dynamo.reset()
        compiled = torch.compile(lambda x: functional.dropout(x, p), backend=backend)
        torch.manual_seed(3)
        return [compiled(torch.linspace(-3, 3, size).to(device)) for size in (40, 60, 80)]

    assert_same(run(DEVICE), run("cpu"))


def test_compiled_max_pool1d_without_gradients_is_right_at_every_call() -> None:
    torch._dynamo.reset()
    pool = torch.compile(nn.MaxPool1d(2), backend="aot_eager")
    for size in (4, 4, 6, 8):
        value = torch.randn(size, 3, 8)
        assert_same(pool(value.to(DEVICE)), functional.max_pool1d(value, 2))


def test_an_exported_encoder_layer_runs_with_another_batch_and_length() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
    second = torch.randn(5, 9, 16)
    expected = layer(second)
    layer.to(DEVICE)
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    example = torch.randn(3, 7, 16, device=DEVICE)
    exported = torch.export.export(layer, (example,), dynamic_shapes=(sizes,))
    assert_same(exported.module()(second.to(DEVICE)), expected)


def test_a_compiled_training_step_takes_batches_of_any_size() -> None:
    def run(device: str) -> list[Tensor]:
        torch._dynamo.reset()
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv1d(3, 8, 3),
            nn.BatchNorm1d(8),
            nn.GroupNorm(2, 8),
            nn.RMSNorm(6),
            nn.Flatten(),
            nn.Linear(48, 4),
        ).to(device)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, foreach=False)
        compiled = torch.compile(net, backend="aot_eager")
        for size in (2, 5, 3, 7):
            value = torch.randn(size, 3, 8).to(device)
            optimizer.zero_grad()
            compiled(value).square().mean().backward()
            optimizer.step()
        return [p.detach() for p in net.parameters()] + list(net.buffers())

    assert_same(run(DEVICE), run("cpu"))


def test_an_onnx_file_of_a_traced_module_is_the_cpus() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()).eval()
    value = torch.randn(1, 3, 8, 8)
    files = []
    for device in ("cpu", DEVICE):
        file = io.BytesIO()
        torch.onnx.export(net.to(device), (value.to(device),), file, dynamo=False)
        files.append(file.getvalue())
    assert b"Conv" in files[0]
    assert files[0] == files[1]
