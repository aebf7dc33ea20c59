"""`torch_remote.Graph`: calls recorded once, then run again and again by one message each time."""

from __future__ import annotations

import functools
import itertools
import os
from typing import Any

import torch

from torch_remote_patches import dot

from . import _C
from ._backend import name
from ._patches import patch

_pools = itertools.count(1)


class Graph(_C.Graph):
    """Records the calls of a block, and replays them by one message.

    What `torch.cuda.CUDAGraph` is for CUDA: while the block is open, nothing runs; `replay()` runs
    everything that was recorded, on the tensors that the block used. New values go in by writing to
    those tensors (`x.copy_(batch)`), and results come out of the tensors that the block made, which
    each replay gives new values::

        x = torch.zeros(8, 3, device="remote")
        graph = torch_remote.Graph()
        with graph:
            y = model(x)
        for batch in batches:
            x.copy_(batch)
            graph.replay()
            print(y.sum().item())

    What waits for the server cannot be recorded: reading a value, `synchronize()`, and operators
    whose results have sizes that depend on data. They raise what CUDA raises, and the program goes
    on, without a graph. Nor can a tensor be sent from this process's memory.

    A replay draws new random numbers from the generators, as the calls would.
    """

    _pool: Any = None

    def capture_begin(
        self,
        pool: Any = None,
        capture_error_mode: str = "global",
        check_input_liveness: bool = False,
    ) -> None:
        """Starts to record. The arguments are CUDA's, and change nothing here."""
        self._begin()
        self._pool = (next(_pools), 0) if pool is None else pool

    def capture_end(self) -> None:
        self._end()

    def instantiate(self) -> None:
        """Does nothing: a graph can be replayed when it is captured."""

    def pool(self) -> Any:
        """The pool that was given, or a name. A graph's temporaries live while it runs."""
        return (0, 0) if self._pool is None else self._pool

    def enable_debug_mode(self) -> None:
        """Does nothing: `debug_dump()` always works."""

    def debug_dump(self, debug_path: str | os.PathLike[str]) -> None:
        """Writes the calls, with their lines, as a graph in Graphviz's language."""
        dot.write_chain(debug_path, self._describe_calls())

    def __enter__(self) -> Graph:
        self.capture_begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if kind is None:
            self.capture_end()
        else:
            self._abandon()  # the block's own error is raised

    def __repr__(self) -> str:
        state = "recording" if self._is_recording else f"{self._calls} calls"
        return f"<torch_remote.Graph: {state}>"


def _checked(check: Any) -> Any:
    """An optimizer's check of `capturable`, which PyTorch makes on CUDA and XPU only."""

    @functools.wraps(check)
    def call(optimizer: Any) -> None:
        if not torch.compiler.is_compiling() and _C.is_recording():
            groups = optimizer.param_groups
            if not all(group["capturable"] or group.get("fused") for group in groups):
                raise RuntimeError(
                    f"Attempting {name().upper()} graph capture of step() for an instance of "
                    f"{type(optimizer).__name__} but param_groups' capturable is False."
                )
        check(optimizer)

    return call


def install() -> None:
    """An optimizer that counts its steps in Python says so where it would be captured."""
    optimizer = torch.optim.Optimizer
    checks = ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check")
    check = next(each for each in checks if hasattr(optimizer, each))  # the first: torch 2.13
    patch(optimizer, check, _checked(getattr(optimizer, check)))
