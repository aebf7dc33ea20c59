"""Graphed callables of `torch.cuda`, and what a capture refuses, in CUDA's words."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import assert_same
from redirecting import redirected

import torch_remote

REFUSED = "operation not permitted when stream is capturing"
AGAIN = "failed due to a previous error during capture"
F = torch.nn.functional


class Inner(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(6, 6)
        self.dropout = torch.nn.Dropout(0.2)

    def forward(self, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"output": self.dropout(self.linear(given["x"]))}


def values(tensors: Any) -> list[torch.Tensor]:
    return [torch.from_numpy(each.detach().float().numpy().copy()) for each in tensors]


# --- graphed callables


@pytest.mark.parametrize("autocast", [False, True])
def test_graphed_modules_and_functions_train_as_eagerly(used: str, autocast: bool) -> None:
    def mode() -> Any:
        return torch.autocast("cuda", enabled=autocast, cache_enabled=False)

    def train(use_graph: bool) -> list[torch.Tensor]:
        torch.manual_seed(5)
        model, head, loss_of = Inner().cuda(), torch.nn.Linear(6, 2).cuda(), F.mse_loss
        control = copy.deepcopy(model), copy.deepcopy(head)
        parameters = [*model.parameters(), *head.parameters()]
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        data = [(torch.randn(4, 6).cuda(), torch.randn(4, 2).cuda()) for _ in range(5)]
        x, unused = torch.randn(4, 6).cuda(), torch.randn(4, 1).cuda().requires_grad_()
        h, p = torch.randn(4, 6).cuda().requires_grad_(), torch.randn(4, 2).cuda().requires_grad_()
        relu: Any = F.relu
        if use_graph:
            with mode():
                model, head, relu, loss_of = torch.cuda.make_graphed_callables(
                    (model, head, relu, loss_of),
                    (({"x": x, "unused": unused},), (h,), (p,), (p, data[0][1].clone())),
                    num_warmup_iters=2,
                    allow_unused_input=True,
                )
        torch.cuda.manual_seed(5)
        for ours, goal in data:
            optimizer.zero_grad(set_to_none=True)
            with mode():
                y = head(model({"x": ours, "unused": unused})["output"])
                loss = loss_of(relu(y).float(), goal)
            loss.backward()
            optimizer.step()
        model.eval()  # another mode than the captured one: not replayed
        for mine, own in zip((model, head), control, strict=True):
            own.load_state_dict(mine.state_dict())
        with mode():
            last = model({"x": data[0][0]})["output"]
            assert torch.equal(last, control[0].eval()({"x": data[0][0]})["output"])
        return values([*parameters, loss, last])

    assert_same(train(True), train(False))


def test_an_input_that_is_not_used_must_be_allowed(used: str) -> None:
    x, y = (torch.ones(2, device="cuda", requires_grad=True) for _ in range(2))
    with pytest.raises(RuntimeError, match="not have been used in the graph"):
        torch.cuda.make_graphed_callables(lambda x, y: x * 2, (x, y))
    double = torch.cuda.make_graphed_callables(lambda x, y: x * 2, (x, y), allow_unused_input=True)
    double(x, y).sum().backward()
    assert x.grad.tolist() == [2, 2]
    assert y.grad is None


def test_a_gradient_reaches_the_callers_own_input(used: str) -> None:
    sample = torch.zeros(3, device="cuda", requires_grad=True)
    cube = torch.cuda.make_graphed_callables(lambda x: (x**3, x.detach() + 1), (sample,))
    for number in (2.0, 3.0):
        x = torch.full((3,), number, device="cuda", requires_grad=True)
        y, beside = cube(x * 1)
        (y * 2).sum().backward()
        assert (y.tolist(), x.grad.tolist()) == ([number**3] * 3, [6 * number**2] * 3)
        assert beside.tolist() == [number + 1] * 3


def test_models_that_share_a_pool_keep_their_own_results(used: str) -> None:
    pool = torch.cuda.graph_pool_handle()
    models = [torch.nn.Linear(4, 3).cuda() for _ in range(3)]
    sample = torch.randn(2, 4).cuda()
    graphed = [
        torch.cuda.make_graphed_callables(copy.deepcopy(each), (sample,), pool=pool)
        for each in models
    ]
    for model, ours in zip(models, graphed, strict=True):
        x = torch.randn(2, 4).cuda()
        for each in (model, ours):
            each(x).norm().backward()
        assert_same(
            values(each.grad for each in ours.parameters()),
            values(each.grad for each in model.parameters()),
        )


def test_callables_that_cannot_be_graphed_are_refused_in_pytorchs_words(used: str) -> None:
    x = torch.ones(2, 6, device="cuda")
    module = torch.nn.Linear(6, 6).cuda()
    with torch.autocast("cuda"), pytest.raises(RuntimeError, match="cache_enabled=False"):
        torch.cuda.make_graphed_callables(module, (x,))
    with pytest.raises(AssertionError, match="must contain only Tensors"):
        torch.cuda.make_graphed_callables(module, (x, 3))
    module.register_forward_hook(lambda *_: None)
    with pytest.raises(AssertionError, match="must not have hooks"):
        torch.cuda.make_graphed_callables(module, (x,))


# --- refusals


REFUSALS: dict[str, Callable[[torch.Tensor], Any]] = {
    "item": lambda x: x.sum().item(),
    "of an input": lambda x: float(x[0]),
    "bool": lambda x: bool((x > 0).all()),
    "equal": lambda x: torch.equal(x, x),
    "nonzero": torch.nonzero,
    "masked": lambda x: x[x > 0],
    "synchronize": lambda _: torch.cuda.synchronize(),
    "stream": lambda _: torch.cuda.current_stream().synchronize(),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_waits_is_refused_and_the_program_goes_on(used: str, name: str) -> None:
    x, graph = torch.ones(3, device="cuda"), torch.cuda.CUDAGraph()
    stream = torch.cuda.current_stream()
    refused = pytest.raises(torch.AcceleratorError, match=f"{AGAIN}.*{REFUSED}")
    with refused as raised, torch.cuda.graph(graph):
        x.add_(1)
        REFUSALS[name](x)
    first: Any = raised.value.__context__
    assert REFUSED in str(first)
    assert (first.error_code, raised.value.error_code) == (900, 901)
    assert not torch.cuda.is_current_stream_capturing()
    assert torch.cuda.current_stream() == stream
    assert x.tolist() == [1, 1, 1]
    with pytest.raises(RuntimeError, match="replay without a preceding successful capture"):
        graph.replay()
    with torch.cuda.graph(graph):
        x.add_(1)
    graph.replay()
    assert x.tolist() == [2, 2, 2]


def test_values_of_the_host_can_be_read_in_a_capture() -> None:
    for target, policy in (("cpu", "full"), ("remote", "foreign")):
        with redirected(target, policy):
            x = torch.ones(2, device="cuda")
            with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
                x.mul_(torch.tensor(3).item())
            graph.replay()
            assert x.tolist() == [3, 3]


def test_a_capture_begins_on_a_side_stream_and_once(used: str) -> None:
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="captured on a non-default stream"):
        graph.capture_begin()
    with torch.cuda.stream(torch.cuda.Stream()):
        with pytest.raises(RuntimeError, match="Unknown capture error mode"):
            graph.capture_begin(capture_error_mode="loose")
        for name in ("pool", "instantiate", "replay"):
            with pytest.raises(RuntimeError, match="without a preceding successful capture"):
                getattr(graph, name)()
        for mode in ("global", "thread_local", "relaxed"):
            graph.capture_begin(capture_error_mode=mode)
            torch.ones(2, device="cuda")
            graph.capture_end()
            with pytest.raises(RuntimeError, match="already owns a captured graph"):
                graph.capture_begin()
            graph.reset()
        with pytest.raises(RuntimeError, match="not being captured"):
            graph.capture_end()


def test_an_error_of_the_block_itself_is_raised(used: str) -> None:
    x, stream = torch.ones(3, device="cuda"), torch.cuda.current_stream()
    with pytest.raises(ValueError, match="my own"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        x.add_(1)
        raise ValueError("my own")
    assert x.tolist() == [1, 1, 1]
    assert torch.cuda.current_stream() == stream
    assert not torch.cuda.is_current_stream_capturing()


def test_a_graph_inside_a_graph_is_refused(used: str) -> None:
    x, outer, inner = torch.ones(3, device="cuda"), *(torch.cuda.CUDAGraph() for _ in range(2))
    with torch.cuda.graph(inner):
        x.add_(1)
    with pytest.raises(torch.AcceleratorError), torch.cuda.graph(outer):
        inner.replay()
    with pytest.raises(RuntimeError), torch.cuda.graph(outer), torch.cuda.graph(inner):
        pass
    with contextlib.suppress(RuntimeError), torch.cuda.stream(torch.cuda.Stream()):
        assert not torch.cuda.is_current_stream_capturing()
    inner.replay()
    assert x.tolist() == [2, 2, 2]


def test_an_empty_graph_warns(used: str) -> None:
    graph = torch.cuda.CUDAGraph()
    with pytest.warns(UserWarning, match="CUDA Graph is empty"), torch.cuda.graph(graph):
        pass
    graph.replay()


@pytest.mark.parametrize("kind", ["Adam", "AdamW", "ASGD", "NAdam", "RMSprop", "Adadelta"])
def test_an_optimizer_that_is_not_capturable_says_so(used: str, kind: str) -> None:
    groups = [torch.ones(1, device="cuda", requires_grad=True) for _ in range(2)]
    for each in groups:
        each.grad = torch.ones_like(each)
    optimizer = getattr(torch.optim, kind)(
        [{"params": [groups[0]], "capturable": True}, {"params": [groups[1]]}]
    )
    optimizer.step()
    before = values(groups)
    refused = pytest.raises(RuntimeError, match=r"Attempting CUDA graph capture of step.*is False")
    with refused, torch.cuda.graph(torch.cuda.CUDAGraph()):
        optimizer.step()
    assert_same(values(groups), before)
    optimizer.step()


def test_torch_remote_alone_refuses_such_an_optimizer_too() -> None:
    weight = torch.ones(1, device="remote", requires_grad=True)
    weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.Adam([weight])
    optimizer.step()
    refused = pytest.raises(RuntimeError, match="Attempting REMOTE graph capture of step")
    with refused, torch_remote.Graph():
        optimizer.step()
    optimizer.step()


def test_what_cuda_graphs_have_beside_replays(used: str, tmp_path: Path) -> None:
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    assert isinstance(graph, torch.cuda.graphs.CUDAGraph)
    graph.enable_debug_mode()
    graph.register_generator_state(torch.Generator("cuda"))
    x = torch.ones(2, 2, device="cuda")
    with torch.cuda.graph(graph, capture_error_mode="relaxed"):
        (x @ x).relu()
    graph.instantiate()
    graph.replay()
    graph.debug_dump(tmp_path / "graph.dot")
    text = (tmp_path / "graph.dot").read_text()
    assert text.startswith("digraph") and "mm" in text and "relu" in text and "0 -> 1" in text
    for name in ("raw_cuda_graph", "raw_cuda_graph_exec", "get_graph_data"):
        with pytest.raises(NotImplementedError, match="no cudaGraph_t here"):
            getattr(graph, name)()


def test_torch_remotes_own_graph_goes_through_torch_cuda_graph(remote: str) -> None:
    x, graph = torch.ones(2, device="cuda"), torch_remote.Graph()
    with torch.cuda.graph(graph):
        x.add_(1)
    graph.replay()
    assert x.tolist() == [2, 2]


def test_a_capture_of_one_device_leaves_nothing_for_the_next() -> None:
    for target in ("cpu", "remote", "cpu"):
        with redirected(target) as device:
            x = torch.ones(2, device="cuda")
            with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
                x.add_(1)
                assert torch.cuda.current_stream().device.type == torch.device(device).type
            graph.replay()
            assert x.tolist() == [2, 2]
    assert not hasattr(torch._C, "_host_emptyCache") or torch.backends.cuda.is_built()
