"""Every public function of torch.fft, linalg, special and signal gives what it gives on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import DEVICE, assert_same
from torch.utils._pytree import tree_leaves, tree_map


def positive() -> torch.Tensor:
    return torch.tensor([[4.0, 1, 0], [1, 3, 1], [0, 1, 5]])


def factors() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.linalg.lu_factor(positive())


def spectrum() -> torch.Tensor:
    return torch.fft.rfft2(torch.arange(12.0).reshape(3, 4))


# The arguments of one call; by default a small matrix.
ARGUMENTS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "fft.fftfreq": lambda: (5,),
    "fft.rfftfreq": lambda: (5,),
    "fft.irfft": lambda: (spectrum(),),
    "fft.irfft2": lambda: (spectrum(),),
    "fft.irfftn": lambda: (spectrum(),),
    "fft.hfft": lambda: (spectrum(),),
    "linalg.cross": lambda: (positive(), positive().T),
    "linalg.householder_product": lambda: (positive(), torch.ones(3)),
    "linalg.ldl_solve": lambda: (*torch.linalg.ldl_factor(positive()), torch.ones(3, 1)),
    "linalg.lstsq": lambda: (
        torch.eye(3),
        torch.ones(3, 1),
    ),  # LAPACK's rounding of others depends on the alignment of memory
    "linalg.lu_solve": lambda: (*factors(), torch.ones(3, 1)),
    "linalg.matmul": lambda: (positive(), positive()),
    "linalg.matrix_power": lambda: (positive(), 3),
    "linalg.multi_dot": lambda: ([positive(), positive(), positive()],),
    "linalg.solve": lambda: (positive(), torch.ones(3)),
    "linalg.solve_ex": lambda: (positive(), torch.ones(3)),
    "linalg.tensorinv": lambda: (torch.eye(4).reshape(2, 2, 4),),
    "linalg.tensorsolve": lambda: (torch.eye(4).reshape(2, 2, 4), torch.ones(2, 2)),
    "linalg.vecdot": lambda: (positive(), positive()),
    "linalg.vander": lambda: (torch.arange(3.0),),
    "special.polygamma": lambda: (2, positive()),
    "special.multigammaln": lambda: (positive() + 3, 2),
    "special.logsumexp": lambda: (positive(), 1),
    "special.softmax": lambda: (positive(), 1),
    "special.log_softmax": lambda: (positive(), 1),
    "special.gammainc": lambda: (positive(), positive() + 1),
    "special.gammaincc": lambda: (positive(), positive() + 1),
    "special.xlogy": lambda: (positive(), positive() + 1),
    "special.xlog1py": lambda: (positive(), positive() + 1),
    "special.zeta": lambda: (positive() + 2, positive() + 1),
    "signal.windows.general_cosine": lambda: (8,),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "linalg.solve_triangular": {"upper": True},
    "signal.windows.general_cosine": {"a": [0.5, 0.5]},
}
SECOND = {"linalg.solve_triangular": torch.ones(3, 1)}


def functions() -> dict[str, Callable[..., Any]]:
    spaces = {
        "fft": torch.fft,
        "linalg": torch.linalg,
        "special": torch.special,
        "signal.windows": torch.signal.windows,
    }
    return {
        f"{space}.{name}": getattr(module, name)
        for space, module in spaces.items()
        for name in getattr(module, "__all__", dir(module))
        if not name.startswith("_") and not isinstance(getattr(module, name), type)
        if callable(getattr(module, name))
    }


FUNCTIONS = functions()


def arguments_of(name: str) -> tuple[Any, ...]:
    if name in ARGUMENTS:
        return ARGUMENTS[name]()
    if name.startswith("signal."):
        return (8,)
    if "polynomial" in name:
        return (positive(), torch.tensor(3))
    if name in SECOND:
        return (positive(), SECOND[name])
    return (positive(),)


def run(name: str, device: str) -> Any:
    arguments = tree_map(
        lambda leaf: leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf, arguments_of(name)
    )
    makes = name.startswith("signal.") or name.endswith("fftfreq")
    options = OPTIONS.get(name, {}) | ({"device": device} if makes else {})
    results = tree_leaves(FUNCTIONS[name](*arguments, **options))
    return [(leaf, leaf.stride()) if isinstance(leaf, torch.Tensor) else leaf for leaf in results]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_gives_what_it_gives_on_the_cpu(name: str) -> None:
    assert_same(run(name, DEVICE), run(name, "cpu"))
