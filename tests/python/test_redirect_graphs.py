"""`torch.cuda.graph` and `make_graphed_callables` as PyTorch's documentation writes them.

Each replayed program is compared, bit for bit, with the same steps made eagerly.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import assert_same

import torch_remote

REFUSED = "operation not permitted when stream is capturing"
F = torch.nn.functional


def captured(function: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[Any, Any]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **options):
        result = function(*arguments)
    return graph, result


def warm_up(step: Callable[[], Any], times: int = 3) -> None:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(times):
            step()
    torch.cuda.current_stream().wait_stream(side)


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 12), torch.nn.BatchNorm1d(12), torch.nn.Dropout(0.3), torch.nn.GELU(),
        torch.nn.Linear(12, 3),
    ).cuda()  # fmt: skip


def values(tensors: Any) -> list[torch.Tensor]:
    return [torch.from_numpy(each.detach().float().numpy().copy()) for each in tensors]


def batches(count: int = 6) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(1)
    return [(torch.randn(5, 6).cuda(), torch.randn(5, 3).cuda()) for _ in range(count)]


# --- what a capture does


def test_a_capture_changes_nothing_and_the_first_replay_adds(used: str) -> None:
    x = torch.ones(3, device="cuda")
    graph, y = captured(lambda: x.add_(1) * 2)
    assert x.tolist() == [1, 1, 1]
    for _ in range(2):
        graph.replay()
    assert (x.tolist(), y.tolist()) == ([3, 3, 3], [6, 6, 6])


def test_a_capture_moves_no_generator_and_changes_no_buffer(used: str) -> None:
    model, own = network(), torch.Generator("cuda").manual_seed(4)
    x = torch.randn(5, 6, device="cuda")
    before = torch.cuda.get_rng_state(), own.get_state()
    buffers = values(model.buffers())
    graph, y = captured(lambda: model(x) + torch.rand(5, 3, device="cuda", generator=own))
    assert torch.equal(torch.cuda.get_rng_state(), before[0])
    assert torch.equal(own.get_state(), before[1])
    assert_same(values(model.buffers()), buffers)
    graph.replay()
    replayed = values([y, *model.buffers()])
    other = network()
    torch.cuda.set_rng_state(before[0])
    own.set_state(before[1])
    eager = other(x) + torch.rand(5, 3, device="cuda", generator=own)
    assert_same(replayed, values([eager, *other.buffers()]))


def test_one_replay_is_one_call(remote: str) -> None:
    x = torch.ones(8, 8, device="cuda")
    graph, _ = captured(lambda: [x.mul_(0.5) for _ in range(50)])
    graph.replay()
    torch.cuda.synchronize()
    with torch_remote.count() as counted:
        graph.replay()
    assert (counted.calls, counted.syncs) == (1, 0)
    assert isinstance(graph, torch_remote.Graph)


def test_only_the_capturing_thread_captures(used: str) -> None:
    seen: dict[str, bool] = {}

    class Asks(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
            seen["backward"] = torch.cuda.is_current_stream_capturing()
            return gradient * 2

    def look() -> None:
        seen["other"] = torch.cuda.is_current_stream_capturing()

    x = torch.ones(2, device="cuda", requires_grad=True)
    Asks.apply(x).sum().backward()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        seen["own"] = torch.cuda.is_current_stream_capturing()
        assert torch.cuda.current_stream().is_capturing()
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        Asks.apply(x).sum().backward()
    assert seen == {"own": True, "other": False, "backward": True}
    assert not torch.cuda.is_current_stream_capturing()


# --- PyTorch's documentation


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, capturable=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, capturable=True, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, capturable=True),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01, capturable=True),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True, capturable=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_whole_network_trains_as_eagerly(used: str, name: str) -> None:
    def train(use_graph: bool) -> list[torch.Tensor]:
        model, data = network(), batches()
        optimizer = OPTIMIZERS[name](model.parameters())
        x, goal = data[0][0].clone(), data[0][1].clone()
        torch.cuda.manual_seed(2)

        def step() -> torch.Tensor:
            loss = F.mse_loss(model(x), goal)
            loss.backward()
            optimizer.step()
            return loss

        def whole() -> torch.Tensor:
            optimizer.zero_grad(set_to_none=True)
            return step()

        warm_up(whole)
        optimizer.zero_grad(set_to_none=True)
        if use_graph:
            graph, loss = captured(step)
        losses = []
        for ours, theirs in data:
            x.copy_(ours)
            goal.copy_(theirs)
            if use_graph:
                graph.replay()
            else:
                loss = whole()
            losses.append(loss.detach().clone())
        return values([*losses, *model.parameters(), *model.buffers()])

    assert_same(train(True), train(False))


def test_parts_of_a_network_with_python_between_them(used: str) -> None:
    def train(use_graph: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        first, second, third = (torch.nn.Linear(4, 4).cuda() for _ in range(3))
        loss_of: Any = torch.nn.MSELoss()
        parameters = itertools.chain(first.parameters(), second.parameters(), third.parameters())
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        data = [(torch.randn(3, 4).cuda(), torch.randn(3, 4).cuda()) for _ in range(6)]
        x, h = torch.randn(3, 4).cuda(), torch.randn(3, 4).cuda().requires_grad_()
        if use_graph:
            first = torch.cuda.make_graphed_callables(first, (x,))
            second, third = torch.cuda.make_graphed_callables((second, third), ((h,), (h,)))
        taken = []
        for ours, goal in data:
            optimizer.zero_grad(set_to_none=True)
            inner = first(ours)
            taken.append(inner.sum().item() > 0)
            loss = loss_of(second(inner) if taken[-1] else third(inner), goal)
            loss.backward()
            optimizer.step()
        assert len(set(taken)) == 2
        return values([*first.parameters(), *second.parameters(), *third.parameters(), loss])

    assert_same(train(True), train(False))


def test_mixed_precision_with_the_scaler_outside(used: str) -> None:
    def train(use_graph: bool) -> list[torch.Tensor]:
        model, data = network(), batches()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda", init_scale=128.0)
        x, goal = data[0][0].clone(), data[0][1].clone()
        torch.cuda.manual_seed(2)

        def step() -> torch.Tensor:
            with torch.autocast("cuda", cache_enabled=False):
                loss = F.mse_loss(model(x).float(), goal)
            scaler.scale(loss).backward()
            return loss

        def whole() -> torch.Tensor:
            optimizer.zero_grad(set_to_none=True)
            return step()

        warm_up(whole)
        optimizer.zero_grad(set_to_none=True)
        graph, loss = captured(step) if use_graph else (None, None)
        for ours, theirs in data:
            x.copy_(ours)
            goal.copy_(theirs)
            if use_graph:
                graph.replay()
            else:
                loss = whole()
            scaler.step(optimizer)
            scaler.update()
        return values([loss, *model.parameters(), *model.buffers()])

    assert_same(train(True), train(False))


def test_a_scaler_inside_steps_a_fused_optimizer(used: str) -> None:
    weight = torch.ones(3, device="cuda", requires_grad=True)
    optimizer = torch.optim.Adam([weight], lr=0.5, fused=True, capturable=True)
    scaler = torch.amp.GradScaler("cuda", init_scale=4.0, growth_interval=2)
    x = torch.ones(3, device="cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        scaler.scale((weight * x).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    step()
    graph, _ = captured(step)
    before = weight.tolist()
    x.fill_(float("inf"))
    graph.replay()
    assert (weight.tolist(), scaler.get_scale()) == (before, 2.0)
    x.fill_(1)
    graph.replay()
    graph.replay()
    assert weight.tolist() < before
    assert scaler.get_scale() == 4.0


def test_streams_inside_a_capture(used: str) -> None:
    x = torch.ones(4, device="cuda")
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph):
        side.wait_stream(torch.cuda.current_stream())
        y = x + 1
        with torch.cuda.stream(side):
            z = x * 3
            z.record_stream(side)
            event = side.record_event()
        torch.cuda.current_stream().wait_event(event)
        torch.cuda.current_stream().wait_stream(side)
        total = y + z
    x.fill_(2)
    graph.replay()
    assert total.tolist() == [9, 9, 9, 9]


@pytest.mark.parametrize("shared", ["no", "pool()", "graph_pool_handle()"])
def test_graphs_that_share_a_pool_run_in_turn(used: str, shared: str) -> None:
    def work(x: torch.Tensor, add: int) -> torch.Tensor:
        for _ in range(5):
            x = (x.clone() + add) + (x.clone() + add)
        return x

    handle = torch.cuda.graph_pool_handle()
    x, side = torch.ones(10, device="cuda"), torch.cuda.Stream()
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        pool = (handle,) if shared == "graph_pool_handle()" else ()
        first.capture_begin(*pool)
        y = work(x, 1)
        first.capture_end()
        second.capture_begin(*((first.pool(),) if shared == "pool()" else pool))
        z = work(y, 1)
        second.capture_end()
    torch.cuda.current_stream().wait_stream(side)
    assert (first.pool() == second.pool()) == (shared != "no")
    assert handle != torch.cuda.graph_pool_handle()
    first.replay()
    other = work(x, 3)
    second.replay()
    assert (z[0].item(), other[0].item()) == (3070, 218)
    del first, second
    assert z.sum().item() == 30700


def test_graphs_replayed_on_two_streams(used: str) -> None:
    x, start = torch.ones(1000, device="cuda"), torch.cuda.Stream()
    graphs = [captured(lambda n=n: (x + n) * n, stream=start) for n in (2, 5)]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in graphs]
    for stream, (graph, _) in zip(streams, graphs, strict=True):
        with torch.cuda.stream(stream):
            graph.replay()
    for stream in streams:
        torch.cuda.current_stream().wait_stream(stream)
    assert [y[7].item() for _, y in graphs] == [6, 30]


# --- random numbers


DRAWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dropout": lambda x: F.dropout(x, 0.1),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "bernoulli": lambda x: x + torch.bernoulli(torch.full_like(x, 0.5)),
    "normal": lambda x: torch.normal(x, 1.0),
    "randint": lambda x: x + torch.randint(0, 3, x.shape, device="cuda"),
    "exponential_": lambda x: x.clone().exponential_(),
    "uniform_": lambda x: x + torch.empty_like(x).uniform_(),
}


@pytest.mark.parametrize("name", DRAWS)
def test_replays_and_eager_calls_draw_from_one_sequence(used: str, name: str) -> None:
    x = torch.linspace(-1, 1, 50).cuda()
    graph, y = captured(lambda: DRAWS[name](DRAWS[name](x)))
    for seed in (5, 9999):
        torch.cuda.manual_seed(seed)
        drawn = []
        for _ in range(2):
            graph.replay()
            drawn += [y.clone(), DRAWS[name](x)]
        torch.cuda.manual_seed(seed)
        eager = []
        for _ in range(2):
            eager += [DRAWS[name](DRAWS[name](x)), DRAWS[name](x)]
        assert_same(values(drawn), values(eager))
        assert not torch.equal(drawn[0], drawn[2])


def fork(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    with torch.random.fork_rng(devices=[0], device_type="cuda"):
        first = torch.dropout(x * weight, 0.5, True)
    return first + torch.dropout(x * weight, 0.5, True)


def go_back(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    state = torch.cuda.get_rng_state()
    y = torch.dropout(x * weight, 0.5, True) + torch.rand_like(x)
    torch.cuda.set_rng_state(state)
    return y + torch.rand_like(x)


def checkpointed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    def layer(x: torch.Tensor) -> torch.Tensor:
        return torch.dropout(torch.dropout(x * weight, 0.5, True), 0.2, True)

    return torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False) + torch.rand_like(x)


@pytest.mark.parametrize("function", [fork, go_back, checkpointed], ids=lambda f: f.__name__)
def test_states_that_the_block_takes_and_puts_back(
    used: str, function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> None:
    x, weight = torch.ones(16, device="cuda"), torch.ones(16, device="cuda", requires_grad=True)
    weight.grad = torch.zeros_like(weight)

    def step() -> torch.Tensor:
        assert weight.grad is not None
        weight.grad.zero_()
        y = function(x, weight)
        y.sum().backward()
        return y.detach() + torch.rand_like(x)

    graph, y = captured(step)
    torch.cuda.manual_seed(8)
    replayed = []
    for _ in range(3):
        graph.replay()
        replayed += values([y, weight.grad, torch.rand(2, device="cuda")])
    torch.cuda.manual_seed(8)
    eager = []
    for _ in range(3):
        eager += values([step(), weight.grad, torch.rand(2, device="cuda")])
    assert_same(replayed, eager)


def test_a_seed_in_the_block_is_refused(used: str) -> None:
    def step() -> torch.Tensor:
        torch.cuda.manual_seed(3)
        return torch.rand(2, device="cuda")

    with pytest.raises(RuntimeError, match=r"capturing|previous error during capture"):
        captured(step)
    assert torch.ones(2, device="cuda").sum().item() == 2
