"""`torch.compile` on remote tensors: two backends work, and the default one is refused."""

from __future__ import annotations

import pytest
import torch
from helpers import DEVICE, assert_runs
from torch._dynamo.exc import BackendCompilerFailed


def double(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).sin() + 1


def zeros_there(x: torch.Tensor) -> torch.Tensor:
    return x + torch.zeros(2, device=DEVICE).cpu()


@pytest.fixture(autouse=True)
def forget_what_was_compiled() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_these_backends_compute_what_eager_does(backend: str) -> None:
    x = torch.arange(3.0, device=DEVICE, requires_grad=True)
    y = torch.compile(double, backend=backend)(x)
    y.sum().backward()
    assert torch.equal(y, double(x))
    assert x.grad is not None
    assert x.grad.device == x.device


@pytest.mark.parametrize("options", [{}, {"mode": "max-autotune"}, {"dynamic": True}])
def test_the_default_backend_is_refused_with_the_one_to_use(options: dict[str, object]) -> None:
    x = torch.ones(3, device=DEVICE)
    with pytest.raises(BackendCompilerFailed) as caught:
        torch.compile(double, **options)(x)
    lines = str(caught.value).splitlines()
    assert [line for line in lines if 'backend="aot_eager"' in line] == [
        "NotImplementedError: torch.compile with inductor makes kernels for this machine, "
        "and a tensor on "
        'remote:0 is not in its memory: use torch.compile(..., backend="aot_eager")'
    ]
    assert isinstance(caught.value.inner_exception, NotImplementedError)


def test_a_remote_tensor_that_the_function_makes_is_noticed() -> None:
    with pytest.raises(BackendCompilerFailed, match="aot_eager"):
        torch.compile(zeros_there)(torch.ones(2))


def test_a_module_is_refused_as_a_function_is() -> None:
    module = torch.compile(torch.nn.Linear(2, 2).to(DEVICE))
    with pytest.raises(BackendCompilerFailed, match="aot_eager"):
        module(torch.ones(1, 2, device=DEVICE))


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
