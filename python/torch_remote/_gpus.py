"""The GPU types that a cloud machine can have, and which of them a workload needs.

Memory and list prices are data, with their date: `torch_remote_execution/gpus.json`. The client
never asks a provider.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any

import torch

from torch_remote_execution.modal_app import GPUS
from torch_remote_patches.byte_count import parse_bytes


class GPUType(Enum):
    """A GPU of a cloud machine; the value is the provider's name for it."""

    T4 = "T4"
    L4 = "L4"
    A10G = "A10G"
    A100_40GB = "A100-40GB"
    A100_80GB = "A100-80GB"
    L40S = "L40S"
    H100 = "H100"
    H200 = "H200"
    B200 = "B200"

    @classmethod
    def parse(cls, name: str | GPUType) -> GPUType:
        """The type of this name, in any letter case. ValueError lists the names there are."""
        if isinstance(name, GPUType):
            return name
        for each in cls:
            if isinstance(name, str) and each.value.lower() == name.lower():
                return each
        names = [each.value for each in cls]
        raise ValueError(f"Invalid GPU type '{name}'. Valid types: {names}")


@dataclass(frozen=True)
class GPUFacts:
    """Memory that a program can allocate, and the list price."""

    gpu: GPUType
    memory: int
    usd_per_hour: float


def prices_date() -> str:
    """The day of the prices in the table."""
    return str(GPUS["date"])


@cache
def gpu_facts() -> tuple[GPUFacts, ...]:
    """All types, the cheapest first."""
    facts = [
        GPUFacts(GPUType(each["name"]), int(each["memory_gib"] * 2**30), each["usd_per_hour"])
        for each in GPUS["types"]
    ]
    return tuple(sorted(facts, key=lambda each: each.usd_per_hour))


def names_of_gpus(provider: str) -> dict[str, Any]:
    """What the provider calls the types for which the table has its name."""
    return {each["name"]: each[provider] for each in GPUS["types"] if provider in each}


def larger_type(gpu: GPUType) -> GPUType | None:
    """The cheapest type with more memory; None for the largest."""
    memory = next(each.memory for each in gpu_facts() if each.gpu == gpu)
    return next((each.gpu for each in gpu_facts() if each.memory > memory), None)


@dataclass(frozen=True)
class GPUChoice:
    """What `choose_gpu()` has chosen, and why. `str()` is a table of all types."""

    gpu: GPUType
    memory_needed: int
    why: str
    budget_per_hour: float | None = None

    def __str__(self) -> str:
        lines = [self.why, f"{'type':<10} {'memory':>10} {'price':>9}"]
        for each in gpu_facts():
            lines.append(
                f"{each.gpu.value:<10} {_gib(each.memory):>10} {each.usd_per_hour:>7.2f}/h  "
                + self._verdict(each)
            )
        return "\n".join([*(line.rstrip() for line in lines), f"Prices of {prices_date()}, in USD"])

    def _verdict(self, facts: GPUFacts) -> str:
        if facts.gpu == self.gpu:
            return "chosen"
        if facts.memory < self.memory_needed:
            return "too small"
        if self.budget_per_hour is not None and facts.usd_per_hour > self.budget_per_hour:
            return "over the budget"
        return ""


def choose_gpu(
    need: torch.nn.Module | int | float | str,
    *,
    training: bool = True,
    dtype: torch.dtype | None = None,
    budget_per_hour: float | None = None,
) -> GPUChoice:
    """The cheapest GPU type that has enough memory.

    `need` is a module, a number of parameters, or bytes as text (`"30GiB"`), to which nothing is
    added. For a module or a number of parameters the estimate is: weights; with `training` also
    gradients and the two states of Adam, each as large as the weights; and an allowance for
    activations, CUDA's context and fragmentation. `dtype` is that of the weights: by default the
    module's own, or float32. `budget_per_hour` is in USD.
    """
    needed, reason = _estimate(need, training, dtype)
    for each in gpu_facts():
        within = budget_per_hour is None or each.usd_per_hour <= budget_per_hour
        if each.memory >= needed and within:
            why = f"{each.gpu.value} is the cheapest type with {_gib(needed)}: {reason}"
            return GPUChoice(each.gpu, needed, why, budget_per_hour)
    raise ValueError(_none_fits(needed, reason, budget_per_hour))


def _none_fits(needed: int, reason: str, budget: float | None) -> str:
    large = [each for each in gpu_facts() if each.memory >= needed]
    if large:
        return (
            f"no GPU type with {_gib(needed)} costs at most {budget:.2f} USD an hour; the cheapest "
            f"is {large[0].gpu.value} at {large[0].usd_per_hour:.2f} ({reason})"
        )
    largest = max(gpu_facts(), key=lambda each: each.memory)
    return (
        f"no GPU type has {_gib(needed)}; the largest, {largest.gpu.value}, has "
        f"{_gib(largest.memory)} ({reason}). Use a smaller dtype, or several machines"
    )


ACTIVATIONS = 0.25  # of everything else
CONTEXT = 2**30  # CUDA's context, its libraries' workspaces, fragmentation


def _estimate(
    need: torch.nn.Module | int | float | str, training: bool, dtype: torch.dtype | None
) -> tuple[int, str]:
    if isinstance(need, str):
        if re.fullmatch(r"\s*[\d.]+\s*b\s*", need, re.IGNORECASE):
            raise ValueError(
                f"{need!r} could be bytes or billions of parameters: write bytes as 30GiB, and a "
                "number of parameters as 7e9, not as text"
            )
        return parse_bytes(need), "as asked for"
    if isinstance(need, torch.nn.Module):
        trained = _bytes_of(need.parameters(), dtype)
        fixed = _bytes_of(need.buffers(), None)
        what = "a module"
    elif isinstance(need, (int, float)) and not isinstance(need, bool) and need >= 0:
        trained = int(need) * (dtype or torch.float32).itemsize
        fixed = 0
        what = f"{int(need):,} parameters"
    else:
        raise TypeError(
            "choose_gpu() needs a module, a number of parameters, or bytes as text such as "
            f"'30GiB', not {need!r}"
        )
    copies = 4 if training else 1
    base = copies * trained + fixed
    parts = "weights, gradients and the states of Adam" if training else "weights"
    reason = (
        f"{what} of {_gib(trained)}; {parts}, {ACTIVATIONS:.0%} for activations, 1 GiB for CUDA"
    )
    return int(base * (1 + ACTIVATIONS)) + CONTEXT, reason


def _bytes_of(tensors: Iterable[torch.Tensor], dtype: torch.dtype | None) -> int:
    return sum(
        each.numel() * (dtype if dtype and each.is_floating_point() else each.dtype).itemsize
        for each in tensors
    )


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
