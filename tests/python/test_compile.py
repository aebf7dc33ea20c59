"""`torch.compile` on remote tensors: which backend compiles a graph."""

from __future__ import annotations

import pytest
import torch
from helpers import DEVICE, assert_runs


def double(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).sin() + 1


def zeros_there(x: torch.Tensor) -> torch.Tensor:
    return x + torch.zeros(2, device=DEVICE).cpu()


@pytest.fixture(autouse=True)
def forget_what_was_compiled() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_these_backends_compute_what_eager_does(backend: str) -> None:
    x = torch.arange(3.0, device=DEVICE, requires_grad=True)
    y = torch.compile(double, backend=backend)(x)
    y.sum().backward()
    assert torch.equal(y, double(x))
    assert x.grad is not None
    assert x.grad.device == x.device


def test_a_remote_tensor_that_the_function_makes_is_noticed() -> None:
    assert torch.equal(torch.compile(zeros_there)(torch.ones(2)), torch.ones(2))


def test_an_encoder_with_its_fast_path_is_one_graph() -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 2).eval().to(DEVICE)
    x = torch.randn(2, 5, 8, device=DEVICE)
    with torch.no_grad():
        assert torch.equal(torch.compile(encoder, fullgraph=True)(x), encoder(x))


def test_where_aot_autograd_fails_the_graph_runs_as_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(graph: object, inputs: object) -> object:
        raise RuntimeError("no such operator")

    monkeypatch.setattr("torch._dynamo.backends.common.aot_autograd", lambda **_: fail)
    x = torch.ones(3, device=DEVICE)
    assert torch.equal(torch.compile(double)(x), double(x))
    assert "runs as it is" in capsys.readouterr().err


def test_ahead_of_time_is_refused() -> None:
    program = torch.export.export(torch.nn.Linear(2, 2).to(DEVICE), (torch.ones(1, 2).to(DEVICE),))
    with pytest.raises(NotImplementedError, match="AOTInductor"):
        torch._inductor.aoti_compile_and_package(program)


def test_importing_us_imports_no_compiler() -> None:
    said = assert_runs("""
        import sys, torch
        before = set(sys.modules)
        import torch_remote
        new = set(sys.modules) - before
        print(sorted(name for name in new if "_inductor" in name or "_dynamo" in name))
    """)
    assert said == "[]"


def test_a_graph_of_cpu_tensors_goes_to_inductor_as_before() -> None:
    from torch._inductor import compile_fx

    reached = []

    def inner(graph: torch.fx.GraphModule, *_: object, **__: object) -> object:
        reached.append(graph)
        return graph.forward

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        return compile_fx.compile_fx(graph, inputs, inner_compile=inner)

    x = torch.arange(3.0)
    assert torch.allclose(torch.compile(double, backend=backend)(x), double(x))
    assert len(reached) == 1
