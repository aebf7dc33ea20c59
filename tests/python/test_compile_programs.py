"""Graphs of `torch.compile` are programs of the server: what they compute, and what that costs."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from failures import held_server
from helpers import DEVICE, same, serving
from torch import nn

import torch_remote

Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def forget_what_was_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def no_line(capsys: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Every graph is a program: nothing says that one is not."""
    yield
    assert "torch.compile" not in capsys.readouterr().err


def compiled(function: Callable[..., Any], device: str, **options: Any) -> Callable[..., Any]:
    """On the CPU the same graphs, run call by call."""
    if device == "cpu":
        options["backend"] = "aot_eager"
        options.pop("mode", None)
    return torch.compile(function, **options)


def same_on_both(run: Callable[[str], Any]) -> None:
    torch.manual_seed(0)
    expected = run("cpu")
    torch._dynamo.reset()
    torch.manual_seed(0)
    found = run(DEVICE)
    assert len(expected) == len(found)
    for one, other in zip(expected, found, strict=True):
        assert same(other.cpu(), one)


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout(),
        nn.Flatten(),
        nn.LazyLinear(3),
    )


def train(device: str, steps: int = 4, **options: Any) -> list[Tensor]:
    model = network().eval()
    model(torch.zeros(2, 2, 6, 6))
    model.to(device).train()
    step = compiled(model, device, **options)
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    batches = torch.randn(steps, 4, 2, 6, 6)  # before the CPU's generator draws for dropout
    torch.manual_seed(1)
    for index, batch in enumerate(batches.to(device)):
        loss = step(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=index % 2 == 0)
        losses.append(loss.detach())
    return [*losses, *model.state_dict().values()]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"backend": "inductor"},
        {"mode": "max-autotune"},
        {"mode": "reduce-overhead"},
        {"fullgraph": True},
        {"dynamic": True},
    ],
    ids=str,
)
def test_training_is_that_of_aot_eager(options: dict[str, Any], no_line: None) -> None:
    same_on_both(lambda device: train(device, **options))


def test_forward_and_backward_are_one_message_each(no_line: None) -> None:
    layer = nn.Sequential(*[nn.Linear(8, 8) for _ in range(10)]).to(DEVICE)
    run = torch.compile(layer)
    x = torch.randn(4, 8).to(DEVICE)
    for _ in range(2):
        run(x).backward(torch.ones_like(x))
    gradient = torch.ones_like(x)
    with torch_remote.count() as counted:
        y = run(x)
    assert (counted.calls, counted.syncs) == (1, 0)
    for parameter in layer.parameters():
        parameter.grad = None
    with torch_remote.count() as counted:
        y.backward(gradient)
    assert (counted.calls, counted.syncs) == (1, 0)


@pytest.mark.parametrize("sizes", [[3, 5, 3, 7, 5, 2], [4, 4, 1, 4]])
def test_sizes_change(sizes: list[int], no_line: None) -> None:
    def run(device: str) -> list[Tensor]:
        weight = torch.randn(4, 4).to(device).requires_grad_()
        function = compiled(lambda x: (x @ weight).softmax(-1) * x.shape[0], device)
        found = []
        for size in sizes:
            y = function(torch.randn(size, 4).to(device))
            y.square().sum().backward()
            found.append(y.detach())
        return [*found, weight.grad]

    same_on_both(run)


def test_slices_of_one_tensor_are_one_program() -> None:
    data = torch.randn(40, 4).to(DEVICE)
    function = torch.compile(lambda x: x.sin() @ x.T)
    function(data[:4])
    with torch_remote.count() as counted:
        found = [function(data[at : at + 4]) for at in range(0, 40, 4)]
    assert counted.calls == 10
    assert counted.bytes_sent < 10 * 20
    for at, value in enumerate(found):
        part = data[4 * at : 4 * at + 4]
        assert torch.equal(value, part.sin() @ part.T)


@pytest.mark.parametrize("absolute", [False, True])
def test_a_view_by_place_stays_where_it_is(absolute: bool) -> None:
    def run(device: str) -> list[Tensor]:
        data = torch.arange(40.0).to(device)
        function = compiled(
            lambda x: torch.as_strided(x, (3,), (2,), 1 if absolute else None) * 2, device
        )
        return [function(data[at : at + 8]) for at in (0, 8, 24, 8)]

    same_on_both(run)


def test_outputs_stay_what_they_are_over_later_runs() -> None:
    function = torch.compile(lambda x: x * 2)
    found = [function(torch.full((2,), float(i), device=DEVICE)) for i in range(5)]
    assert [value[0].item() for value in found] == [0.0, 2.0, 4.0, 6.0, 8.0]


def test_an_output_is_fed_back_and_changed_in_place(no_line: None) -> None:
    def run(device: str) -> list[Tensor]:
        def step(x: Tensor, y: Tensor) -> Tensor:
            x.add_(1)
            return x * y

        function = compiled(step, device)
        x = torch.randn(3).to(device)
        found = [x]
        for _ in range(4):
            x = function(x, found[0])
            found.append(x)
        return found

    same_on_both(run)


def test_a_change_in_place_bumps_the_version_of_the_input() -> None:
    def step(x: Tensor) -> Tensor:
        x.mul_(2)
        return x + 1

    function = torch.compile(step)
    x = torch.ones(2, device=DEVICE)
    for _ in range(3):
        before = x._version
        function(x)
        assert x._version > before
    assert x.tolist() == [8.0, 8.0]


def test_inputs_that_share_memory_and_views_that_come_back(no_line: None) -> None:
    def run(device: str) -> list[Tensor]:
        def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            y.add_(x.sum())
            return x, y.T, x[1:] * 2

        function = compiled(step, device)
        whole = torch.randn(4, 4).to(device)
        found: list[Tensor] = []
        for _ in range(3):
            found += function(whole[:2], whole[2:])
            found += function(whole[:2].clone(), whole[:2])
        found[1].zero_()
        return [*found, whole]

    same_on_both(run)


def test_other_strides_and_an_expanded_input(no_line: None) -> None:
    def run(device: str) -> list[Tensor]:
        function = compiled(lambda x: x.contiguous().view(-1).cumsum(0), device)
        x = torch.randn(3, 4).to(device)
        return [function(x), function(x.T), function(x[:, :1].expand(3, 4)), function(x)]

    same_on_both(run)


def test_parameters_are_replaced() -> None:
    def run(device: str) -> list[Tensor]:
        model = nn.Linear(3, 3).to(device)
        function = compiled(model, device)
        x = torch.randn(2, 3).to(device)
        found = [function(x)]
        model.load_state_dict({name: value * 2 for name, value in model.state_dict().items()})
        found.append(function(x))
        model.weight.data = model.weight.data + 1
        found.append(function(x))
        model.weight = nn.Parameter(model.weight.detach() * 3)
        found.append(function(x))
        return found

    same_on_both(run)


def test_tied_weights_and_accumulated_gradients(no_line: None) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(7, 4)
            self.out = nn.Linear(4, 7, bias=False)
            self.out.weight = self.embed.weight

        def forward(self, tokens: Tensor) -> Tensor:
            return nn.functional.cross_entropy(self.out(self.embed(tokens)), tokens)

    def run(device: str) -> list[Tensor]:
        model = Tied().to(device)
        function = compiled(model, device)
        for _ in range(3):
            function(torch.randint(7, (5,)).to(device)).backward()
        return [gradient for each in model.parameters() if (gradient := each.grad) is not None]

    same_on_both(run)


def test_random_operators_draw_what_eager_draws(no_line: None) -> None:
    def function(x: Tensor) -> Tensor:
        return nn.functional.dropout(x, 0.5) + torch.randn_like(x) + torch.rand(3, device=x.device)

    step = torch.compile(function)
    x = torch.ones(3, device=DEVICE)
    torch.manual_seed(5)
    found = [step(x) for _ in range(4)]
    torch.manual_seed(5)
    for value in found:
        assert torch.equal(value, function(x))


def test_autocast_inside_and_outside(no_line: None) -> None:
    x = torch.randn(4, 4).to(DEVICE)

    def inside(value: Tensor) -> Tensor:
        with torch.autocast("remote", dtype=torch.bfloat16):
            return value @ value

    step = torch.compile(inside)
    assert all(torch.equal(step(x), inside(x)) for _ in range(3))
    product = torch.compile(lambda value: value @ value)
    for _ in range(2):
        with torch.autocast("remote", dtype=torch.bfloat16):
            assert product(x).dtype == torch.bfloat16
        assert product(x).dtype == torch.float32


def test_a_run_has_the_settings_of_its_call() -> None:
    function = torch.compile(lambda x: x * 2)
    x = torch.ones(2, device=DEVICE)
    function(x)
    before = torch.backends.cudnn.benchmark
    try:
        torch.backends.cudnn.benchmark = not before  # Dynamo does not look at it
        with torch_remote.count() as counted:
            function(x)
        assert counted.bytes_sent > 40  # a program that begins with it
        with torch_remote.count() as counted:
            function(x)
        assert counted.bytes_sent < 20
    finally:
        torch.backends.cudnn.benchmark = before
    with torch_remote.count() as counted:
        assert function(x).tolist() == [2.0, 2.0]
    assert counted.calls == 1


def test_graph_breaks_recompiles_and_nested_compile(no_line: None) -> None:
    def run(device: str) -> list[Tensor]:
        inner = compiled(lambda x: x.relu() * 3, device)

        def outer(x: Tensor, times: int) -> Tensor:
            y = x * times
            torch._dynamo.graph_break()
            return inner(y) + 1

        function = compiled(outer, device)
        x = torch.randn(3).to(device)
        return [function(x, times) for times in (1, 2, 3, 2, 1)]

    same_on_both(run)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(reentrant: bool) -> None:
    def run(device: str) -> list[Tensor]:
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).to(device)

        def step(x: Tensor) -> Tensor:
            return torch.utils.checkpoint.checkpoint(model, x, use_reentrant=reentrant).sum()

        function = compiled(step, device)
        for _ in range(3):
            function(torch.randn(2, 4).to(device).requires_grad_()).backward()
        return [gradient for each in model.parameters() if (gradient := each.grad) is not None]

    same_on_both(run)


def test_hooks_run_and_see_the_gradient() -> None:
    def run(device: str) -> list[Tensor]:
        model = nn.Linear(3, 3).to(device)
        seen: list[Tensor] = []
        model.weight.register_hook(lambda gradient: seen.append(gradient.clone()))
        function = compiled(model, device)
        for _ in range(3):
            function(torch.randn(2, 3).to(device)).sum().backward()
        return seen

    same_on_both(run)


def test_functions_of_torch_func(no_line: None) -> None:
    def run(device: str) -> list[Tensor]:
        def loss(weight: Tensor, x: Tensor) -> Tensor:
            return (x @ weight).square().sum()

        function = compiled(torch.func.vmap(torch.func.grad(loss), (None, 0)), device)
        weight = torch.randn(3, 2).to(device)
        return [function(weight, torch.randn(4, 5, 3).to(device)) for _ in range(3)]

    same_on_both(run)


@pytest.mark.parametrize(
    "options", [{"foreach": True}, {"capturable": True}, {"fused": True}], ids=str
)
def test_a_compiled_optimizer_makes_the_steps_of_aot_eager(options: dict[str, bool]) -> None:
    def run(device: str) -> list[Tensor]:
        if device == "cpu" and "capturable" in options:
            options_here: dict[str, bool] = {"foreach": True}
        else:
            options_here = options
        weights = [nn.Parameter(torch.full((3,), i + 1.0).to(device)) for i in range(3)]
        made = torch.optim.AdamW(weights, lr=0.1, **options_here)
        step = compiled(made.step, device)
        for _ in range(4):
            for weight in weights:
                weight.grad = torch.full_like(weight, 0.5)
            step()
        return list(weights)

    expected, found = run("cpu"), run(DEVICE)
    for one, other in zip(expected, found, strict=True):
        assert one.tolist() == pytest.approx(other.tolist(), rel=1e-5)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + x.cpu().sin().to(DEVICE),
        lambda x: x[x > 0] * 2,
        lambda x: x * x.sum().item(),
        lambda x: x + torch.rand(3).to(DEVICE),
        lambda x: torch.linalg.cholesky(torch.diag(x.abs() + 1)),
        lambda x: torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,)),
    ],
    ids=["cpu", "selection", "item", "cpu random", "checks values", "cond"],
)
def test_what_can_be_no_program_runs_all_the_same(function: Callable[[Tensor], Tensor]) -> None:
    step = torch.compile(function)
    for seed in range(4):
        torch.manual_seed(seed)
        x = torch.randn(3).to(DEVICE)
        torch.manual_seed(9)
        found = step(x)
        torch.manual_seed(9)
        assert torch.allclose(found, function(x))


def test_a_line_says_why_a_graph_is_no_program(capsys: pytest.CaptureFixture[str]) -> None:
    step = torch.compile(lambda x: torch.linalg.cholesky(x) * 2)
    for _ in range(3):
        step(torch.eye(2, device=DEVICE))
    lines = [line for line in capsys.readouterr().err.splitlines() if "torch.compile" in line]
    assert len(lines) <= 1  # another test may have caused the line
    assert all("linalg_cholesky" in line for line in lines)


def test_an_argument_on_the_cpu_is_read_anew_each_time() -> None:
    step = torch.compile(lambda x, scale: x * scale)
    x = torch.ones(2, device=DEVICE)
    assert [step(x, torch.tensor(float(i)))[0].item() for i in range(4)] == [0.0, 1.0, 2.0, 3.0]


def test_an_exception_between_forward_and_backward_leaves_no_trace() -> None:
    model = nn.Linear(2, 2).to(DEVICE)
    step = torch.compile(model)
    x = torch.ones(1, 2, device=DEVICE)
    for attempt in range(4):
        with contextlib.suppress(ValueError):
            y = step(x).sum()
            if attempt % 2 == 0:
                raise ValueError
            y.backward()
    assert model.bias.grad is not None
    assert model.bias.grad.tolist() == [2.0, 2.0]


def test_two_threads_share_a_compiled_module() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)).to(DEVICE)
    step = torch.compile(model)
    inputs = [torch.randn(2, 4).to(DEVICE) for _ in range(8)]
    expected = [model(x) for x in inputs]
    step(inputs[0])
    wrong: list[int] = []

    def work(first: int) -> None:
        for _ in range(20):
            for at in range(first, 8, 2):
                if not torch.equal(step(inputs[at]), expected[at]):
                    wrong.append(at)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_an_error_inside_names_the_operator_and_the_program_goes_on() -> None:
    step = torch.compile(lambda x, at: x.gather(0, at) * 2)
    x = torch.ones(3, device=DEVICE)
    good, bad = torch.tensor([1], device=DEVICE), torch.tensor([7], device=DEVICE)
    assert step(x, good).item() == 2.0
    with held_server():
        failed = step(x, bad)
    with pytest.raises(torch_remote.RemoteError, match="aten::gather"):
        failed.item()
    assert step(x, good).item() == 2.0


def test_in_a_graph_the_calls_of_a_compiled_function_are_recorded() -> None:
    step = torch.compile(lambda x: x * 2 + 1)
    x = torch.ones(2, device=DEVICE)
    step(x)
    graph = torch_remote.Graph()
    with graph:
        y = step(x)
    x.fill_(5)
    graph.replay()
    assert y.tolist() == [11.0, 11.0]


def test_a_copy_of_a_compiled_module_is_compiled_for_itself() -> None:
    model = nn.Linear(2, 2).to(DEVICE)
    step = torch.compile(model)
    x = torch.ones(1, 2, device=DEVICE)
    before = step(x)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.weight.zero_()
    assert torch.equal(torch.compile(other)(x), other(x))
    assert torch.equal(step(x), before)


def test_views_of_another_element_size_in_slices_raise_what_pytorch_raises() -> None:
    data = torch.randn(40).to(DEVICE)
    step = torch.compile(lambda x: x.view(torch.float64) + 1)
    assert torch.equal(step(data[0:10]), data[0:10].view(torch.float64) + 1)
    with pytest.raises(RuntimeError, match="storage_offset"):
        step(data[1:11])
    assert torch.equal(step(data[2:12]), data[2:12].view(torch.float64) + 1)


def test_an_operator_of_the_program_runs_its_python_each_time() -> None:
    factor = [1.0]

    @torch.library.custom_op("mine::scaled_by_a_list", mutates_args=())
    def scaled(x: Tensor) -> Tensor:
        return x * factor[0]

    @scaled.register_fake
    def _(x: Tensor) -> Tensor:
        return torch.empty_like(x)

    step = torch.compile(lambda x: torch.ops.mine.scaled_by_a_list(x) + 1)
    x = torch.ones(2, device=DEVICE)
    assert step(x).tolist() == [2.0, 2.0]
    factor[0] = 3.0
    assert step(x).tolist() == [4.0, 4.0]


def test_tensors_on_two_servers_run_call_by_call(tmp_path: Path) -> None:
    with (
        serving(f"unix://{tmp_path}/server.sock", "--device", "cpu") as url,
        torch_remote.connect(url) as machine,
    ):
        x, y = torch.ones(2, device=DEVICE), torch.ones(2, device=machine.devices[0])
        step = torch.compile(lambda one, two: (one + 1, two * 2))
        for _ in range(3):
            one, two = step(x, y)
            assert (one.tolist(), two.tolist()) == ([2.0, 2.0], [2.0, 2.0])
            assert two.device == y.device


def test_sizes_that_never_come_again_are_not_recorded_for_ever() -> None:
    step = torch.compile(lambda x: x * 2, dynamic=True)
    for size in range(3, 40):
        assert step(torch.ones(size, device=DEVICE)).sum().item() == 2 * size


def test_a_view_that_comes_back_has_the_version_of_its_input() -> None:
    def step(x: Tensor) -> Tensor:
        return x[1:]

    x = torch.ones(3, device=DEVICE)
    for _ in range(3):
        y = torch.compile(lambda value: (step(value), value * 2))(x)[0]
        before = y._version
        x.add_(1)
        assert y._version == before + 1
