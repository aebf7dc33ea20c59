"""The two sides of the kernel suite: what PyTorch runs locally, and what a server logs.

Locally, PyTorch's profiler shows each operator with the operators that it calls, as a tree. It does
not change branches, as a TorchDispatchMode would. The server logs its calls in order.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from kernel_cases import cases
from torch.autograd import DeviceType, profiler

Tree = list[Any]  # [name, [children]]
Trace = list[Any]  # trees, or names
Step = Callable[[], Any]


def traces(modules: list[str], device: str, most_samples: int) -> dict[str, Trace]:
    """By case: trees, or for `remote` the server's calls; for a case that raises, a text."""
    record = _remote_recorder() if device == "remote" else _record_locally
    found: dict[str, Trace] = {}
    for case, step in cases(modules, device, most_samples):
        try:
            found[case] = record(step)
        except RuntimeError as error:
            found[case] = [f"raised {type(error).__name__}: {error}"]
    return found


def _record_locally(step: Step) -> Trace:
    config = torch._C._profiler._ExperimentalConfig(capture_overload_names=True)
    with profiler.profile(experimental_config=config, record_shapes=True) as profile:
        step()
    assert profile.kineto_results is not None
    return _forest(profile.kineto_results.events())


def _forest(events: list[Any]) -> list[Tree]:
    """The profiler's own tree omits an operator that calls another overload of its name."""
    roots: list[Tree] = []
    open_by_thread: dict[
        int, list[tuple[int, Tree]]
    ] = {}  # operators that have not ended, and when they end
    on_host = [
        event
        for event in events
        if event.device_type() == DeviceType.CPU and not _copies_nothing(event)
    ]
    for event in sorted(on_host, key=lambda event: (event.start_ns(), -event.end_ns())):
        around = open_by_thread.setdefault(event.start_thread_id(), [])
        while around and around[-1][0] < event.end_ns():
            around.pop()
        name, overload = event.name(), event.overload_name()
        tree: Tree = [f"{name}.{overload}" if overload else name, []]
        (around[-1][1][1] if around else roots).append(tree)
        around.append((event.end_ns(), tree))
    return roots


def _copies_nothing(event: Any) -> bool:
    """A copy of no elements, which is not sent."""
    return event.name() == "aten::copy_" and 0 in event.shapes()[0]


def _remote_recorder() -> Callable[[Step], Trace]:
    import torch_remote

    torch.ones(1, device="remote")
    torch_remote.synchronize()
    prefix = Path(os.environ["TORCH_REMOTE_LOG_CALLS"])
    (path,) = prefix.parent.glob(f"{prefix.name}.*")

    def record(step: Step) -> Trace:
        torch_remote.synchronize()
        start = path.stat().st_size
        step()
        torch_remote.synchronize()
        with path.open(encoding="ascii") as log:
            log.seek(start)
            return log.read().split()

    return record
