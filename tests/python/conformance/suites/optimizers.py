"""Every optimizer and input of optim_db, as a loop, with _foreach_ and with _fused_ operators."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from both import SEED, Run, compare
from cases import Case, Scope
from comparing import Mismatch
from moving import Mover
from torch.testing._internal.common_optimizers import OptimizerInfo, OptimizerInput, optim_db
from torch.testing._internal.common_utils import set_rng_seed
from torch.utils._pytree import tree_map

STEPS = 4
SHAPES = ((3, 4), (2, 5), (4, 2))
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64)


def cases(scope: Scope) -> Iterator[Case]:
    for info in optim_db:
        for dtype in DTYPES if scope.full else DTYPES[:1]:
            if dtype.is_complex and not info.supports_complex:
                continue
            for variant, flags in _variants(info):
                check = partial(_check, info, dtype, flags, scope)
                yield Case(info.name, variant, str(dtype).removeprefix("torch."), check)


def _variants(info: OptimizerInfo) -> Iterator[tuple[str, dict[str, bool]]]:
    if info.only_supports_sparse_grads:
        yield "sparse", {}
        return
    yield "default", {}
    if "foreach" in info.supported_impls:
        yield "for_loop", {"foreach": False}
        yield "foreach", {"foreach": True}
    if "fused" in info.supported_impls and "cpu" in info.supports_fused_on:
        yield "fused", {"fused": True}


def _check(
    info: OptimizerInfo, dtype: torch.dtype, flags: dict[str, bool], scope: Scope, device: str
) -> Iterator[str]:
    for optim_input in info.optim_inputs_func(device="cpu")[: scope.samples]:
        if flags or "foreach" not in info.supported_impls:
            yield compare(partial(_run, info, dtype, flags, optim_input, flags), device)
        else:
            yield _compare_default(info, dtype, optim_input, device)


def _compare_default(
    info: OptimizerInfo, dtype: torch.dtype, optim_input: OptimizerInput, device: str
) -> str:
    """The default must equal _foreach_ or the loop.

    PyTorch picks by device and options: _foreach_ on most accelerators, a loop on the CPU.
    """
    try:
        return compare(partial(_run, info, dtype, {}, optim_input, {"foreach": True}), device)
    except Mismatch:
        return compare(partial(_run, info, dtype, {}, optim_input, {"foreach": False}), device)


def _run(
    info: OptimizerInfo,
    dtype: torch.dtype,
    flags: dict[str, bool],
    optim_input: OptimizerInput,
    flags_on_cpu: dict[str, bool],
    device: str,
) -> Run:
    """Returns the parameters, the losses and the optimizer's state."""
    set_rng_seed(SEED)
    mover = Mover(device)
    starts = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in SHAPES]
    goals = mover.move([torch.randn(shape, dtype=dtype) for shape in SHAPES])
    parameters = mover.move(starts)
    # Copied: a learning rate may be a tensor, which a step may change.
    options = copy.deepcopy(optim_input.kwargs) | (flags_on_cpu if device == "cpu" else flags)
    optimizer = info.optim_cls(parameters, **options)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        pairs = zip(parameters, goals, strict=True)
        distances = [(mine - goal).abs().square().sum() for mine, goal in pairs]
        loss = torch.stack(distances).sum()
        loss.backward()
        if info.only_supports_sparse_grads:
            for parameter in parameters:
                parameter.grad = parameter.grad.to_sparse()
        return loss

    losses = [_step(optimizer, closure) for _ in range(STEPS)]
    state: dict[str, Any] = _moved(optimizer.state_dict(), device)
    for group in state["param_groups"]:
        group.pop("foreach", None)  # set for the CPU, see _compare_default
    results = {"losses": losses, "state": state, "parameters": parameters}
    if info.only_supports_sparse_grads:
        results["gradients"] = [parameter.grad for parameter in parameters]
    return Run(results, mover)


def _step(optimizer: torch.optim.Optimizer, closure: Any) -> torch.Tensor:
    loss: Any = optimizer.step(closure)
    return loss.detach()


def _moved(state: Any, device: str) -> Any:
    """Moves step counters, which are on the CPU or on the device: only their value is compared."""
    copies: dict[int, torch.Tensor] = {}

    def move(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return copies.setdefault(id(leaf), leaf.to(device))

    return tree_map(move, state)
