"""The cases of the kernel suite: modules (training, evaluation, no_grad), optimizers.

Modules and inputs are made on the CPU with one seed, so that every side runs the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.testing._internal.common_modules import ModuleInfo, module_db
from torch.utils._pytree import tree_leaves, tree_map

# Their samples have a tensor of random numbers with this dtype.
DTYPES = {"nn.FractionalMaxPool2d": torch.float64, "nn.FractionalMaxPool3d": torch.float64}
MODES = ("train", "eval", "no_grad")

# A remote device uses foreach by default.
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "optim.ASGD": {},
    "optim.Adadelta": {},
    "optim.Adagrad": {},
    "optim.Adam": {},
    "optim.AdamW": {},
    "optim.Adamax": {},
    "optim.NAdam": {},
    "optim.RAdam": {},
    "optim.RMSprop": {},
    "optim.Rprop": {},
    "optim.SGD": {"momentum": 0.9},
}

Case = tuple[str, Callable[[], Any]]  # its name, and the function that runs it


def module_names() -> list[str]:
    return [info.name for info in module_db]


def optimizer_names() -> list[str]:
    return list(OPTIMIZERS)


def cases(names: list[str], device: str, most_samples: int) -> Iterator[Case]:
    """Run each once and in order: a backward pass uses the forward pass before it."""
    for info in module_db:
        for mode in MODES if info.name in names else ():
            for index, sample in _samples(info, mode == "train", most_samples):
                yield from _passes(info, sample, mode, device, f"{info.name} {mode} {index}")
    for name in OPTIMIZERS:
        if name in names:
            yield from _optimizer_steps(name, device)


def _samples(info: ModuleInfo, training: bool, most: int) -> list[tuple[int, Any]]:
    """The first sample, and a fixed random choice of the others."""
    torch.manual_seed(0)
    dtype = DTYPES.get(info.name, torch.float32)
    made = info.module_inputs_func(
        info, device="cpu", dtype=dtype, requires_grad=True, training=training
    )
    everything = list(enumerate(made))
    rest = random.Random(0).sample(everything[1:], min(most, len(everything)) - 1)
    return everything[:1] + sorted(rest, key=lambda pair: pair[0])


def _passes(info: ModuleInfo, sample: Any, mode: str, device: str, name: str) -> Iterator[Case]:
    torch.manual_seed(0)
    made, inputs = sample.constructor_input, sample.forward_input
    module = info.module_cls(*made.args, **made.kwargs).to(device).train(mode == "train")
    args, kwargs = _moved((inputs.args, inputs.kwargs), device)
    results: list[Any] = []

    def forward() -> None:
        with torch.set_grad_enabled(mode != "no_grad"):
            results.append(module(*args, **kwargs))

    yield f"{name} forward", forward
    outputs = [
        leaf for leaf in tree_leaves(results) if isinstance(leaf, Tensor) and leaf.requires_grad
    ]
    gradients = [torch.ones(output.shape, dtype=output.dtype).to(device) for output in outputs]
    if outputs:
        yield f"{name} backward", lambda: torch.autograd.backward(outputs, gradients)


def _optimizer_steps(name: str, device: str) -> Iterator[Case]:
    """The second step: the first one makes the state."""
    torch.manual_seed(0)
    parameters = [torch.randn(3, 4).to(device).requires_grad_() for _ in range(5)]
    for parameter in parameters:
        parameter.grad = torch.randn(3, 4).to(device)
    kind = getattr(torch.optim, name.removeprefix("optim."))
    optimizer = kind(parameters, foreach=True, **OPTIMIZERS[name])
    optimizer.step()
    yield f"{name} second 0 step", lambda: optimizer.step()


def _moved(value: Any, device: str) -> Any:
    def move(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return leaf.detach().to(device).requires_grad_(leaf.requires_grad)

    return tree_map(move, value)
