"""Runs one thing on the CPU and on the device and compares results, errors and refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from cases import COMPARED, NOTHING, REFUSED, NotOnThisDevice, describe
from comparing import PARTS_OF_LAYOUT, Mismatch, check_aliasing, check_equal, tensors_of
from moving import Mover
from torch.testing._internal.common_utils import set_rng_seed

SEED = 1234

# The layouts of tensors on a remote device.
HELD = frozenset([torch.strided, *PARTS_OF_LAYOUT])


@dataclass
class Run:
    """The results of a function, and the copies of its arguments that `mover` made."""

    results: Any
    mover: Mover
    between: list[torch.Tensor] = field(default_factory=list)  # intermediate tensors
    versions: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.versions = [copy._version for _, copy in self.mover.moved]

    def written_inputs(self, reference: Run) -> list[torch.Tensor]:
        """Inputs that were written into when `reference` ran."""
        copies = [copy for _, copy in self.mover.moved]
        pairs = zip(copies, reference.versions, strict=True)
        return [copy for copy, version in pairs if version > 0]

    def tensors(self) -> list[torch.Tensor]:
        return [copy for _, copy in self.mover.moved] + tensors_of(self.results)


# Called instead of a comparison where the other side is another process (tests/python/gpu).
recorder: Callable[[Callable[[str], Run], str, bool], str] | None = None


def compare(run: Callable[[str], Run], device: str, *, values: bool = True) -> str:
    """Raises Mismatch unless `run(device)` does what `run("cpu")` does."""
    if recorder is not None:
        return recorder(run, device, values)
    return _compare_with(attempt(lambda: run("cpu")), run, device, values)


def _compare_with(expected: Any, run: Callable[[str], Run], device: str, values: bool) -> str:
    if isinstance(expected, Exception):
        _expect_error(expected, lambda: _read(run(device)), device)
        return COMPARED
    if any(tensor.layout not in HELD for tensor in expected.tensors() + expected.between):
        _expect_refusal(lambda: run(device))
        return REFUSED
    actual = run(device)
    check_equal(expected.results, actual.results, device, values=values)
    for want, got in zip(
        expected.written_inputs(expected), actual.written_inputs(expected), strict=True
    ):
        check_equal(want, got, device, values=values)
    check_aliasing(expected.tensors(), actual.tensors())
    return NOTHING if expected.results is None else COMPARED


def compare_where_cpu_works(runs: list[Callable[[str], Run]], device: str) -> Iterator[str]:
    """Compares only runs that work on the CPU, for what PyTorch itself does not always support."""
    errors = []
    for run in runs:
        if recorder is not None:
            yield recorder(run, device, True)
            continue
        expected = attempt(partial(run, "cpu"))
        if isinstance(expected, Exception):
            errors.append(expected)
        else:
            yield _compare_with(expected, run, device, True)
    if errors and len(errors) == len(runs):
        raise NotOnThisDevice(f"the CPU itself raises {describe(errors[0])}")


def gradients(
    outputs: list[torch.Tensor], inputs: list[torch.Tensor]
) -> list[torch.Tensor | None] | None:
    """Gradients of all differentiable outputs for all differentiable inputs, or None."""
    outputs = [output for output in outputs if output.requires_grad]
    inputs = [each for each in inputs if each.requires_grad]
    if not outputs or not inputs:
        return None
    cotangents = [_cotangent(output) for output in outputs]
    set_rng_seed(SEED)
    return list(torch.autograd.grad(outputs, inputs, cotangents, allow_unused=True))


def attempt(function: Callable[[], Any]) -> Any:
    """What the function returns, or the exception it raises."""
    try:
        return function()
    except Exception as error:
        return error


def _cotangent(output: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(SEED)
    if output.is_nested:
        return torch.nested.nested_tensor([_cotangent(part) for part in output.detach().unbind()])
    cotangent = torch.randn(output.shape, dtype=output.dtype, generator=generator)
    return cotangent.to(output.device)


def _expect_error(expected: Exception, function: Callable[[], Any], device: str) -> None:
    if device != "cpu":
        attempt(torch.accelerator.synchronize)  # drops failures of earlier samples
    actual = attempt(function)
    if not isinstance(actual, Exception):
        raise Mismatch(f"no error where the CPU raises {describe(expected)}")
    if isinstance(actual, type(expected)) or _is_late(expected, actual):
        return
    # A call after the failed one may have raised something that local PyTorch does not reach.
    if device != "cpu" and _is_late(expected, attempt(torch.accelerator.synchronize)):
        return
    raise Mismatch(f"{describe(actual)} where the CPU raises {describe(expected)}")


def _is_late(expected: Exception, actual: Exception) -> bool:
    """What only a kernel refuses is raised later: a RuntimeError with the kernel's text."""
    words = next(iter(str(expected).splitlines()), "")
    return bool(words) and isinstance(actual, RuntimeError) and words in str(actual)


def _expect_refusal(function: Callable[[], Any]) -> None:
    """A remote device must refuse another layout at the call and say what to do."""
    actual = attempt(function)
    if not isinstance(actual, Exception):
        raise Mismatch("no NotImplementedError for a layout that a remote device does not hold")
    if not isinstance(actual, NotImplementedError) or ".cpu()" not in str(actual):
        raise Mismatch(f"{describe(actual)} instead of a NotImplementedError that names .cpu()")


def _read(run: Run) -> None:
    """Reads all values, which raises late failures; synchronize() does for empty tensors."""
    for tensor in run.tensors():
        tensor.detach().cpu()
    if run.mover.device.type != "cpu":
        torch.accelerator.synchronize()
