"""Client time of compiled GPT steps, against the least that PyTorch's own part of them costs.

    python benchmarks/python/compiled.py                   times in ms, of both models
    python benchmarks/python/compiled.py --instructions    of the small one, needs valgrind

The least is that of a mock: torch.compile with the same graphs of AOTAutograd, where a graph that
runs makes tensors like its results in this process, and sends nothing.
"""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from figure import Figure, elapsed, interleave
from models import GPT, repeat
from redirect_instructions import INSIDE, control, count_in
from torch import Tensor
from torch.nn import functional as F

import torch_remote

DEVICE = "remote"
BAR = 1.5
ROUNDS = 40
IN_A_ROW = 4  # measured steps after one that is not, which fills the processor's caches
WARM_UP = 6
COUNTED = 20  # steps whose instructions are counted
SIZES = {"2×128": (2, 128), "12×64": (12, 64)}
WAYS = ("forward", "forward, backward", "both as one program", "compile_step")

Step = Callable[[], object]


# --- the mock


def make_like(value: Any) -> Callable[[], Any]:
    if not isinstance(value, Tensor):
        return lambda: value
    size, stride, dtype = tuple(value.shape), value.stride(), value.dtype
    return lambda: torch.empty_strided(size, stride, dtype=dtype, device=DEVICE)


def mock_graph(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., list[Any]]:
    from functorch.compile import make_boxed_func

    places = {node: at for at, node in enumerate(graph.graph.find_nodes(op="placeholder"))}
    results = graph.graph.output_node().args[0]
    makers = [
        (places.get(result), make_like(getattr(result, "meta", {}).get("val")))
        for result in results
    ]

    def run(*arguments: Any) -> list[Any]:
        return [make() if place is None else arguments[place] for place, make in makers]

    return make_boxed_func(run)


def mock_backend(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    backend = aot_autograd(
        fw_compiler=mock_graph,
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )
    compiled: Callable[..., Any] = backend(graph, inputs)
    return compiled


# --- the steps

Loss = Callable[[], Tensor]
Compile = Callable[[Loss], Loss]


def with_own_code(function: Loss) -> Loss:
    """A copy of it. torch.compile finds what it has compiled by the code, which is searched."""
    code = function.__code__.replace()
    return FunctionType(code, function.__globals__, None, None, function.__closure__)


def compile_as_mock(function: Loss) -> Loss:
    mock: Loss = torch.compile(with_own_code(function), backend=mock_backend)
    return mock


def compile_as_product(function: Loss) -> Loss:
    product: Loss = torch.compile(with_own_code(function))
    return product


class Gpt:
    """A model with its loss, and steps of it."""

    def __init__(self, layers: int, width: int) -> None:
        torch.manual_seed(0)
        with torch.device(DEVICE):
            model = GPT(layers, width, heads=4, length=32, vocabulary=512)
            tokens = torch.randint(512, (2, 33))
        inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].flatten()
        self.parameters = list(model.parameters())

        def loss() -> Tensor:
            return F.cross_entropy(model(inputs).flatten(0, 1), targets)

        def loss_and_backward() -> Tensor:
            made = F.cross_entropy(model(inputs).flatten(0, 1), targets)
            made.backward()
            return made.detach()

        self.loss, self.loss_and_backward = loss, loss_and_backward

    def forget_gradients(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def forward(self, compile: Compile) -> Step:
        return torch.no_grad()(compile(self.loss))

    def two_programs(self, compile: Compile) -> Step:
        loss = compile(self.loss)
        return lambda: loss().backward()

    def one_program(self, compile: Compile) -> Step:
        return compile(self.loss_and_backward)

    def training_mock(self) -> Step:
        """With AdamW written out: torch.compile breaks the graph in that of torch.optim."""
        find_loss, parameters = self.loss, self.parameters
        means, squares = ([torch.zeros_like(each) for each in parameters] for _ in "12")
        count = torch.zeros((), device=DEVICE)

        def step() -> Tensor:
            loss = find_loss()
            gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                count.add_(1)
                torch._foreach_lerp_(means, gradients, 0.1)
                torch._foreach_mul_(squares, 0.999)
                torch._foreach_addcmul_(squares, gradients, gradients, 0.001)
                roots = torch._foreach_sqrt(squares)
                torch._foreach_div_(roots, (1 - 0.999**count).sqrt())
                torch._foreach_add_(roots, 1e-8)
                torch._foreach_mul_(parameters, 1 - 1e-5)
                scaled = torch._foreach_div(means, 1 - 0.9**count)
                torch._foreach_addcdiv_(parameters, scaled, roots, -1e-3)
            return loss.detach()

        return compile_as_mock(step)

    def training(self) -> Step:
        optimizer = torch.optim.AdamW(self.parameters, lr=1e-3, fused=True)

        @torch_remote.compile_step
        def step() -> Tensor:
            optimizer.zero_grad()
            loss = self.loss_and_backward()
            optimizer.step()
            return loss

        return step

    def pairs(self) -> Iterator[tuple[str, Step, Step]]:
        """What is measured: its name, the product's step, the mock's."""
        ways = (self.forward, self.two_programs, self.one_program)
        for name, way in zip(WAYS[:-1], ways, strict=True):
            yield name, way(compile_as_product), way(compile_as_mock)
        yield WAYS[-1], self.training(), self.training_mock()


# --- measuring


def prepare() -> None:
    torch.set_num_threads(1)
    torch._dynamo.config.trace_autograd_ops = True  # or backward() breaks the graph


def train(gpt: Gpt, step: Step, steps: int) -> list[float]:
    """The times of steps in a row, of this thread on a processor."""
    torch_remote.synchronize()  # so that no step waits for a backlog
    times = []
    with torch.autograd.set_multithreading_enabled(False):  # its work is in this thread too
        for _ in range(steps):
            gpt.forget_gradients()
            times.append(elapsed(step, time.thread_time))
    return times


def seconds(gpt: Gpt, step: Step) -> float:
    """The least of some steps, after one that fills the processor's caches."""
    return min(train(gpt, step, 1 + IN_A_ROW)[1:])


def times_of(size: str) -> Iterator[tuple[str, float, float]]:
    """What is measured, the product's least time, the mock's."""
    prepare()
    gpt = Gpt(*SIZES[size])
    for name, product, mock in gpt.pairs():
        train(gpt, product, WARM_UP)
        train(gpt, mock, WARM_UP)
        measures = partial(seconds, gpt, product), partial(seconds, gpt, mock)
        products, mocks = interleave(ROUNDS, *measures)
        yield name, min(products), min(mocks)


def _figures_of_times(size: str) -> list[Figure]:
    return [
        Figure(f"compiled GPT {size}, {name}", product / mock, BAR, unit="×")
        for name, product, mock in times_of(size)
    ]


def times_of_the_small_model() -> list[Figure]:
    return _figures_of_times("2×128")


def times_of_the_deep_model() -> list[Figure]:
    return _figures_of_times("12×64")


def calls_of_a_step() -> list[Figure]:
    prepare()
    gpt = Gpt(*SIZES["2×128"])
    optimizer = torch.optim.AdamW(gpt.parameters, lr=1e-3, fused=True)
    forward_and_backward = gpt.two_programs(compile_as_product)

    def step() -> None:
        forward_and_backward()
        optimizer.step()
        optimizer.zero_grad()

    return [
        Figure("calls per compiled GPT step", _calls(step), 8),
        Figure("calls per compile_step", _calls(gpt.training()), 3),
    ]


def _calls(step: Step) -> float:
    repeat(step, WARM_UP)
    with torch_remote.count() as counted:
        repeat(step, COUNTED)
    return counted.calls / COUNTED


# --- instructions


def count_instructions() -> None:
    """Inside valgrind: writes a file of counts for nothing, for the product and for the mock."""
    prepare()
    gc.disable()  # a collection has more instructions than a step
    gpt = Gpt(*SIZES["2×128"])
    for _, product, mock in gpt.pairs():
        for step in (gpt.forget_gradients, product, mock):
            train(gpt, step, WARM_UP)
            control("--instr=on")
            control("--zero")
            train(gpt, step, COUNTED)
            control("--dump")
            control("--instr=off")


def show_instructions() -> None:
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder) / "counts"
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--separate-threads=yes"]
        command += [f"--callgrind-out-file={counts}", sys.executable, __file__]
        subprocess.run(command, env={**os.environ, INSIDE: "1"}, check=True, capture_output=True)
        # The first thread's files are numbered in the order in which they were written.
        numbers = itertools.count(1)
        for name in WAYS:
            nothing, product, mock = (
                count_in(Path(f"{counts}.{next(numbers)}-01")) / COUNTED for _ in "123"
            )
            ratio = (product - nothing) / (mock - nothing)
            each = f"{product - nothing:.0f} against {mock - nothing:.0f} instructions"
            print(f"{name:<24} {ratio:.3f} ×  {each}")


def show_times() -> None:
    for size in SIZES:
        for name, product, mock in times_of(size):
            each = f"{product * 1e3:.3f} against {mock * 1e3:.3f} ms"
            print(f"{size} {name:<24} {product / mock:.3f} ×  {each}", flush=True)


if __name__ == "__main__":
    if os.environ.get(INSIDE):
        count_instructions()
    elif "--instructions" in sys.argv:
        show_instructions()
    else:
        show_times()
