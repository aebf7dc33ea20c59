"""Real models, trained and generating on the device and on the CPU: equal bytes.

    python tests/python/conformance/model_suite.py [--model NAME] [--json FILE] [--compiled]

Each model: initialisation, five training steps, the same steps of which all but two are replays of
a graph, and, for generators, twenty tokens, greedy and sampled. Exits 1 if something differs, is
mispredicted, waits without a read, or is inferred by a Python Meta kernel.

--compiled: only five training steps with torch.compile, compared with those of the CPU's backend
aot_eager, and with those of the model itself.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy
import torch
from comparing import Mismatch, check_equal
from model_table import MODELS, Inputs, Model
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

SEED = 1234
STEPS = 5
EAGER_STEPS = 2  # before a graph is recorded
TOKENS = 20

Counts = dict[str, int]
COUNTED = [
    "calls", "syncs", "signatures_sent", "inferred_by_meta", "inferred_by_server", "mispredicted",
]  # fmt: skip


@dataclass
class Result:
    """One case, with counts of the first and last training step or of a whole generation."""

    model: str
    case: str  # initialised, trained, replayed, greedy, sampled or compiled
    failure: str = ""
    seconds: float = 0.0
    first: Counts = field(default_factory=dict)
    last: Counts = field(default_factory=dict)


class HostRandom(TorchFunctionMode):
    """A separate generator for numbers that a model draws on the host (LayerDrop).

    On an accelerator these do not come from the device's generator; on the CPU they would.
    """

    def __init__(self) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(SEED)

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is torch.rand and kwargs.get("device") is None:
            kwargs["generator"] = self._generator
        return function(*args, **kwargs)


@contextlib.contextmanager
def same_random_numbers(draws_on_host: bool = True) -> Iterator[None]:
    torch.manual_seed(SEED)
    numpy.random.seed(SEED)  # SpecAugment's masks
    with HostRandom() if draws_on_host else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def counting(device: str, into: Counts) -> Iterator[None]:
    if device == "cpu":
        yield
        return
    import torch_remote

    with torch_remote.count() as counted:
        yield
        here = {name: int(getattr(counted, name)) for name in COUNTED[:-1]}
    into.update(here | {"mispredicted": int(counted.mispredicted)})


def moved(value: Any, device: str) -> Any:
    return tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf, value)


def built(model: Model) -> torch.nn.Module:
    torch.manual_seed(SEED)
    return model.build()


def inputs_of(make: Callable[[], Inputs]) -> Inputs:
    torch.manual_seed(SEED)
    return make()


def state_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and all buffers, also those that are not saved."""
    return dict(module.named_parameters()) | dict(module.named_buffers())


def initialise(model: Model, device: str) -> dict[str, torch.Tensor]:
    with torch.device(device):
        return state_of(built(model))


def train(model: Model, device: str, result: Result) -> dict[str, Any]:
    """Losses of all steps, gradients of the first, and the final model. Reads at the end only."""
    module = copy.deepcopy(built(model)).to(device).train()
    inputs = moved(inputs_of(model.inputs), device)
    # The default would be a loop on the CPU and foreach on an accelerator.
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2, foreach=True)
    losses, gradients = [], {}
    with same_random_numbers():
        for step in range(STEPS):
            with counting(device, result.last if step else result.first):
                loss = module(**inputs).loss
                loss.backward()
                optimizer.step()
            losses.append(loss.detach())
            if not step:
                gradients = {name: value.grad for name, value in module.named_parameters()}
            optimizer.zero_grad(set_to_none=True)
    return {"losses": losses, "gradients": gradients, "state": state_of(module)}


def train_compiled(model: Model, device: str, result: Result) -> dict[str, Any]:
    return steps_of(model, device, result, "aot_eager" if device == "cpu" else "inductor")


def steps_of(model: Model, device: str, result: Result, backend: str | None) -> dict[str, Any]:
    """Losses of all steps and the final model, compiled or not."""
    torch._dynamo.reset()
    module = copy.deepcopy(built(model)).to(device).train()
    inputs = moved(inputs_of(model.inputs), device)
    compiled = module if backend is None else torch.compile(module, backend=backend)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2, foreach=True)
    losses = []
    # Dynamo would take SpecAugment's numbers from torch's generator of the CPU.
    as_numpy = torch._dynamo.config.patch(use_numpy_random_stream=True)
    with as_numpy, same_random_numbers(not model.loses_values_under_modes):
        for _ in range(STEPS):
            with counting(device, result.last):
                loss = compiled(**inputs).loss
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
    return {"losses": losses, "state": state_of(module)}


def check_compiled(model: Model, device: str, result: Result) -> None:
    """Also that graphs on the CPU compute what the model does, but where PyTorch's are others."""
    expected = train_compiled(model, "cpu", Result(model.name, "compiled"))
    check_equal(expected, train_compiled(model, device, result), device)
    eager = steps_of(model, "cpu", Result(model.name, "compiled"), None)
    try:
        check_equal(eager, expected, "cpu")
    except Mismatch as error:
        if not model.rounds_otherwise:
            raise Mismatch(f"compiled on the CPU, not as the model itself: {error}") from None
    else:
        if model.rounds_otherwise:
            raise Mismatch("a compiled step on the CPU computes what the model itself does")


def replay(model: Model, device: str, result: Result) -> dict[str, Any]:
    """Losses and the final model, where a graph of the step is replayed after two eager steps."""
    module = copy.deepcopy(built(model)).to(device).train()
    inputs = moved(inputs_of(model.inputs), device)
    # Fused, since a graph needs the count of steps on its device.
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2, fused=True)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss: torch.Tensor = module(**inputs).loss
        loss.backward()
        optimizer.step()
        return loss.detach()

    with same_random_numbers():
        losses = [step() for _ in range(EAGER_STEPS)]
        if device == "cpu":
            losses += [step() for _ in range(STEPS - EAGER_STEPS)]
        else:
            losses += replays_of(step, STEPS - EAGER_STEPS, device, result)
    return {"losses": losses, "state": state_of(module)}


def replays_of(
    step: Callable[[], torch.Tensor], times: int, device: str, result: Result
) -> list[torch.Tensor]:
    import torch_remote

    graph = torch_remote.Graph()
    with graph:
        loss = step()
    losses = []
    for _ in range(times):
        with counting(device, result.last):
            graph.replay()
        losses.append(loss.clone())
    return losses


def generate(model: Model, device: str, result: Result, *, sample: bool) -> torch.Tensor:
    assert model.prompt is not None
    module: Any = copy.deepcopy(built(model)).to(device).eval()
    prompt = moved(inputs_of(model.prompt), device)
    options = {"temperature": 1.0} if sample else {}  # Whisper samples only with this
    with same_random_numbers(), counting(device, result.first):
        tokens: torch.Tensor = module.generate(
            **prompt, do_sample=sample, max_new_tokens=TOKENS, min_new_tokens=TOKENS, **options
        )
    return tokens


def cases_of(model: Model, is_compiled: bool) -> dict[str, Callable[[str, Result], Any]]:
    if is_compiled:
        return {"compiled": lambda device, result: check_compiled(model, device, result)}
    cases: dict[str, Callable[[str, Result], Any]] = {
        "trained": lambda device, result: train(model, device, result),
    }
    if model.reads == 0:
        cases["replayed"] = lambda device, result: replay(model, device, result)
    if not model.starts_on_host:
        cases["initialised"] = lambda device, result: initialise(model, device)
    if model.prompt is not None:
        cases["greedy"] = lambda device, result: generate(model, device, result, sample=False)
        cases["sampled"] = lambda device, result: generate(model, device, result, sample=True)
    return cases


def check(model: Model, case: str, device: str) -> Result:
    result = Result(model.name, case)
    started = time.monotonic()
    try:
        run = cases_of(model, case == "compiled")[case]
        if case == "compiled":
            run(device, result)
        else:
            expected, actual = run("cpu", Result(model.name, case)), run(device, result)
            check_equal(expected, actual, device)
            check_counts(model, result)
    except Mismatch as error:
        result.failure = str(error)
    # Whatever a model raises fails this case, and not the suite.
    except Exception as error:
        result.failure = f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-6)}"
    result.seconds = round(time.monotonic() - started, 2)
    return result


def check_counts(model: Model, result: Result) -> None:
    for name in ("mispredicted", "inferred_by_meta"):
        for counts in (result.first, result.last):
            if counts.get(name):
                raise Mismatch(f"{name}: {counts[name]}")
    if result.last and result.last["syncs"] != model.reads:
        raise Mismatch(f"{result.last['syncs']} syncs in a step that reads {model.reads} values")


def run_models(
    device: str, names: list[str] | None = None, is_compiled: bool = False
) -> list[Result]:
    """The entry of the suite: all models, or those named."""
    torch.set_num_threads(1)  # with one thread sums have one order
    chosen = [model for model in MODELS if names is None or model.name in names]
    results = []
    for model in chosen:
        for case in cases_of(model, is_compiled):
            results.append(check(model, case, device))
            print(line_of(results[-1]), flush=True)
    failed = sum(bool(result.failure) for result in results)
    print(f"{len(results) - failed} passed, {failed} failed, 0 skipped")
    return results


def line_of(result: Result) -> str:
    counts = result.first | {f"later {name}": count for name, count in result.last.items()}
    told = ", ".join(f"{name} {count}" for name, count in counts.items())
    verdict = f"FAILED {result.failure}" if result.failure else "equal"
    return f"{result.model} {result.case}: {verdict} ({result.seconds} s; {told})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", action="append", help="only this model; repeatable")
    parser.add_argument("--device", default="remote", help="cpu checks the suite itself")
    parser.add_argument("--json", type=Path, help="write every case's outcome to this file")
    parser.add_argument("--compiled", action="store_true", help="only steps with torch.compile")
    options = parser.parse_args()
    if options.device != "cpu":
        import torch_remote  # noqa: F401
    results = run_models(options.device, options.model, options.compiled)
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1))
    return 1 if any(result.failure for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
