"""torch.use_deterministic_algorithms(): what the CPU refuses or warns of, and where."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from helpers import DEVICE, assert_matches_cpu
from torch import Tensor
from torch.nn import functional as F

import torch_remote


@contextmanager
def deterministic(*, warn_only: bool = False) -> Iterator[None]:
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def _unpool(dims: int) -> Callable[[str], object]:
    unpool = (F.max_unpool1d, F.max_unpool2d, F.max_unpool3d)[dims - 1]

    def call(device: str) -> object:
        x = torch.ones([1, 1] + [2] * dims, device=device)
        return unpool(x, torch.zeros_like(x, dtype=torch.long), 2)

    return call


def _put(accumulate: bool, name: str) -> Callable[[str], object]:
    def call(device: str) -> object:
        x, index = torch.zeros(3, device=device), torch.tensor([0, 0], device=device)
        return getattr(x, name)(index, torch.ones(2, device=device), accumulate=accumulate)

    return call


def _differentiated(function: Callable[[Tensor], Tensor], *sizes: int) -> Callable[[str], object]:
    def call(device: str) -> object:
        x = torch.rand(*sizes, device=device, requires_grad=True)
        function(x).sum().backward()
        return x.grad

    return call


def _of(function: Callable[[Tensor], object], *sizes: int) -> Callable[[str], object]:
    return lambda device: function(torch.rand(*sizes, device=device))


# What PyTorch's page of use_deterministic_algorithms() names, for a CPU or for CUDA.
CASES: dict[str, Callable[[str], object]] = {
    "put": _put(False, "put"),
    "put_": _put(False, "put_"),
    "put_ accumulate": _put(True, "put_"),
    "max_unpool1d": _unpool(1),
    "max_unpool2d": _unpool(2),
    "max_unpool3d": _unpool(3),
    "avg_pool3d": _differentiated(lambda x: F.avg_pool3d(x, 2), 1, 1, 4, 4, 4),
    "adaptive_avg_pool2d": _differentiated(lambda x: F.adaptive_avg_pool2d(x, 2), 1, 1, 5, 5),
    "adaptive_max_pool2d": _differentiated(lambda x: F.adaptive_max_pool2d(x, 2), 1, 1, 5, 5),
    "max_pool3d": _differentiated(lambda x: F.max_pool3d(x, 2), 1, 1, 4, 4, 4),
    "linear": _differentiated(lambda x: F.interpolate(x, scale_factor=2, mode="linear"), 1, 1, 4),
    "reflection_pad1d": _differentiated(lambda x: F.pad(x, [1, 1], "reflect"), 1, 1, 4),
    "replication_pad1d": _differentiated(lambda x: F.pad(x, [1, 1], "replicate"), 1, 1, 4),
    "histc": _of(torch.histc, 5),
    "median": _of(lambda x: x.median(0), 5),
    "bincount": _of(lambda x: torch.bincount(x.long(), x), 5),
    "cumsum": _of(lambda x: x.cumsum(0), 5),
    "scatter_reduce": _of(
        lambda x: x.scatter_reduce(0, torch.zeros_like(x, dtype=torch.long), x, "prod"), 5
    ),
    "index_copy": _of(lambda x: x.index_copy(0, torch.zeros_like(x, dtype=torch.long), x), 5),
}


def alert_of(call: Callable[[str], object], device: str) -> str | None:
    """What the call itself raises or warns of; None if it does neither."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            call(device)
        except RuntimeError as error:
            return str(error).partition(" does not have")[0]
    texts = [str(warning.message) for warning in seen]
    return next((text.partition(" does not have")[0] for text in texts if "determ" in text), None)


@pytest.mark.parametrize("warn_only", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_an_operator_alerts_where_that_of_the_cpu_does(case: str, warn_only: bool) -> None:
    with deterministic(warn_only=warn_only):
        wanted = alert_of(CASES[case], "cpu")
        assert alert_of(CASES[case], DEVICE) == wanted
    torch_remote.synchronize()
    assert (wanted is not None) == (case.startswith("max_unpool") or case in ("put", "put_"))


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("k", [1, 3, 40])
def test_topk_breaks_ties_as_the_cpu_does(largest: bool, k: int) -> None:
    x = torch.randint(4, (3, 400)).float()
    with deterministic():
        assert_matches_cpu(lambda x: torch.topk(x, k, largest=largest), x)
        assert_matches_cpu(lambda x: torch.topk(x, k, largest=largest), x[:, :41])
