"""Graphs: a module's forward and backward, and whole steps of capturable optimizers, replayed.

A module's replays are compared with the CPU. PyTorch refuses `capturable=True` on the CPU, so the
replayed steps of an optimizer are compared with the same steps made eagerly on the device.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from both import SEED, Run, compare
from cases import COMPARED, REFUSED, Case, NotOnThisDevice, Scope
from comparing import Mismatch, check_equal, tensors_of
from moving import Mover
from torch.testing._internal.common_modules import ModuleInfo, ModuleInput, module_db
from torch.testing._internal.common_optimizers import OptimizerInfo, OptimizerInput, optim_db
from torch.testing._internal.common_utils import set_rng_seed
from torch.utils._pytree import tree_map

from suites.optimizers import SHAPES

DTYPE = torch.float32
REPLAYS = 2


# Modules that send numbers from the host in some samples, which no graph can.
SENDING = {"nn.CTCLoss"}


class _CannotBeCaptured(Exception):
    """The eager step waits for a value, or sends one."""


def cases(scope: Scope) -> Iterator[Case]:
    for info in module_db:
        if DTYPE in info.dtypes:
            for variant in ("train", "eval"):
                check = partial(_check_module, info, variant == "train", scope)
                yield Case(info.name, variant, "float32", check)
    for optimizer in optim_db:
        if _capturable_inputs(optimizer):
            check = partial(_check_optimizer, optimizer)
            yield Case(optimizer.name, "capturable", "float32", check)


def _is_remote(device: str) -> bool:
    return torch.device(device).type == "remote"


# --- modules


def _check_module(info: ModuleInfo, training: bool, scope: Scope, device: str) -> Iterator[str]:
    set_rng_seed(SEED)
    inputs = info.module_inputs_func(
        info, device="cpu", dtype=DTYPE, requires_grad=True, training=training
    )
    for module_input in list(inputs)[: scope.samples]:
        try:
            yield compare(partial(_run_module, info, training, module_input), device)
        except _CannotBeCaptured:
            yield REFUSED


def _run_module(info: ModuleInfo, training: bool, module_input: ModuleInput, device: str) -> Run:
    made = module_input.constructor_input
    set_rng_seed(SEED)
    module = info.module_cls(*made.args, **made.kwargs).to(DTYPE).to(device).train(training)
    mover = Mover(device)
    given: Any = module_input.forward_input
    args, kwargs = mover.move(given.args), mover.move(given.kwargs)
    wanted = [*module.parameters(), *mover.differentiable_inputs()]

    def step() -> list[Any]:
        outputs = module(*args, **kwargs)
        return [outputs, _gradients(tensors_of(outputs), wanted)]

    first = step()  # may ask the server for what it has not seen before
    second, waits = _counted(step, device)
    set_rng_seed(SEED)
    if _is_remote(device):
        replays = _replays(step, waits=waits, may_send=info.name in SENDING)
    else:
        replays = [step() for _ in range(REPLAYS)]
    results = [first, second, *replays]
    state = [list(module.parameters()), list(module.buffers())]
    return Run(tree_map(_copied, [results, state]), mover)


def _gradients(
    outputs: list[torch.Tensor], wanted: list[torch.Tensor]
) -> tuple[torch.Tensor | None, ...]:
    """Of the sum of squares: nothing is sent from the host."""
    roots = [each for each in outputs if each.requires_grad]
    if not roots or not wanted:
        return ()
    total = torch.stack([each.square().sum() for each in roots]).sum()
    return torch.autograd.grad(total, wanted, allow_unused=True)


def _counted(step: Callable[[], Any], device: str) -> tuple[Any, bool]:
    """The step's result, and whether it waited for the server."""
    if not _is_remote(device):
        return step(), False
    import torch_remote

    with torch_remote.count() as counted:
        result = step()
    return result, counted.syncs > 0


def _replays(step: Callable[[], Any], *, waits: bool, may_send: bool) -> list[Any]:
    import torch_remote

    graph = torch_remote.Graph()
    try:
        with graph:
            outputs = step()
    except torch.AcceleratorError as error:
        if waits or may_send:
            raise _CannotBeCaptured from error
        raise
    if waits:
        raise Mismatch("a step that waits was captured")
    results = []
    for _ in range(REPLAYS):
        graph.replay()
        results.append(tree_map(_copied, outputs))
    return results


def _copied(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf


# --- optimizers


def _capturable_inputs(info: OptimizerInfo) -> list[OptimizerInput]:
    inputs = info.optim_inputs_func(device="cuda")
    return [each for each in inputs if each.kwargs.get("capturable")]


def _check_optimizer(info: OptimizerInfo, device: str) -> Iterator[str]:
    if not _is_remote(device):
        raise NotOnThisDevice("capturable=True needs an accelerator")
    for optim_input in _capturable_inputs(info):
        for way in ({"foreach": False}, {"foreach": True}):
            eager = _train(info, optim_input, way, device, is_replayed=False)
            replayed = _train(info, optim_input, way, device, is_replayed=True)
            check_equal([each.cpu() for each in eager], replayed, device)
            yield COMPARED


def _train(
    info: OptimizerInfo,
    optim_input: OptimizerInput,
    way: dict[str, bool],
    device: str,
    *,
    is_replayed: bool,
) -> list[torch.Tensor]:
    import torch_remote

    set_rng_seed(SEED)
    parameters = [torch.randn(shape).to(device).requires_grad_() for shape in SHAPES]
    options = copy.deepcopy(optim_input.kwargs)  # a learning rate may be a tensor
    optimizer = info.optim_cls(parameters, **options, **way)

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        torch.stack([each.square().sum() for each in parameters]).sum().backward()
        optimizer.step()

    step()  # makes the state
    if is_replayed:
        graph = torch_remote.Graph()
        with graph:
            step()
    for _ in range(REPLAYS + 1):
        if is_replayed:
            graph.replay()
        else:
            step()
    return [*parameters, *tensors_of([optimizer.state[each] for each in parameters])]
