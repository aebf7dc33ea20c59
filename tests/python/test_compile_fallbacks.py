"""Graphs of torch.compile that are no programs: they run all the same, and a line says why."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from compile_parts import forget_what_was_compiled  # noqa: F401
from helpers import DEVICE, serving
from torch.utils.checkpoint import checkpoint

import torch_remote

Tensor = torch.Tensor


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


@pytest.fixture
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that other tests have caused come again."""
    monkeypatch.setattr("torch_remote._compile._said", set())


def test_a_line_says_why_a_graph_is_no_program(
    nothing_said: None, capsys: pytest.CaptureFixture[str]
) -> None:
    step = torch.compile(lambda x: torch.linalg.cholesky(x) * 2)
    for _ in range(3):
        step(torch.eye(2, device=DEVICE))
    lines = [line for line in capsys.readouterr().err.splitlines() if "torch.compile" in line]
    assert len(lines) == 1 and "_linalg_check_errors" in lines[0]


def test_an_argument_on_the_cpu_is_read_anew_each_time() -> None:
    step = torch.compile(lambda x, scale: x * scale)
    x = torch.ones(2, device=DEVICE)
    assert [step(x, torch.tensor(float(i)))[0].item() for i in range(4)] == [0.0, 1.0, 2.0, 3.0]


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


def test_each_server_has_its_own_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        serving(f"unix://{tmp_path}/server.sock", "--device", "cpu") as url,
        torch_remote.connect(url) as machine,
    ):
        layer = torch.nn.Linear(3, 3)
        layers = [copy.deepcopy(layer).to(device) for device in (DEVICE, machine.devices[0])]
        steps = [torch.compile(each) for each in layers]
        for _ in range(3):
            x = torch.randn(2, 3)
            made = [
                step(x.to(each.weight.device)) for step, each in zip(steps, layers, strict=True)
            ]
            assert all(torch.equal(each.cpu(), layer(x)) for each in made)
        x = torch.randn(2, 3).to(machine.devices[0])
        with torch_remote.count() as counted:
            steps[1](x).sum()
        assert counted.calls == 2
    assert "torch.compile" not in capsys.readouterr().err


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_a_checkpoint_draws_the_same_random_numbers_again(backend: str) -> None:
    layers = torch.nn.Linear(4, 4), torch.nn.Dropout(), torch.nn.Linear(4, 4), torch.nn.Dropout()
    model = torch.nn.Sequential(*layers).to(DEVICE)

    def step(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = checkpoint(model, x, use_reentrant=False)
        return result.square().sum()

    def gradients(function: Callable[[torch.Tensor], torch.Tensor]) -> list[list[float]]:
        torch.manual_seed(0)
        model.zero_grad()
        for row in range(3):
            function(torch.full((2, 4), row + 1.0, device=DEVICE)).backward()
        return [each.grad.tolist() for each in model.parameters() if each.grad is not None]

    expected = gradients(step)
    with torch_remote.count() as counted:
        assert gradients(torch.compile(step, backend=backend)) == expected
    assert counted.syncs <= len(expected)  # the gradients are read; no state is


def test_sizes_that_never_come_again_are_not_recorded_for_ever(
    nothing_said: None, capsys: pytest.CaptureFixture[str]
) -> None:
    step = torch.compile(lambda x: x * 2, dynamic=True)
    for size in range(3, 40):
        assert step(torch.ones(size, device=DEVICE)).sum().item() == 2 * size
    assert capsys.readouterr().err.count("its sizes do not come again") == 1
