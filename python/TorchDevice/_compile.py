"""`torch.compile` with its default backend, which makes no code for remote devices."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from torch_remote_patches import Patches

from ._log import warn_once


def _values(graph: Any) -> Iterator[Any]:
    """What a graph uses and makes: its own tensors, and an example of each node's result."""
    yield from graph.parameters()
    yield from graph.buffers()
    for module in graph.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                yield node.meta.get("example_value", node.meta.get("val"))


def _is_on(kind: str, graph: Any, inputs: Any) -> bool:
    values = tree_leaves([*inputs, *_values(graph)])
    return any(isinstance(each, torch.Tensor) and each.device.type == kind for each in values)


def _fall_back(graph: Any, inputs: Any, kind: str) -> Any:
    from torch._dynamo.backends.debugging import aot_eager
    from torch._dynamo.exc import TorchDynamoException
    from torch._subclasses.fake_tensor import UnsupportedFakeTensorException

    warn_once("torch.compile", f"has no inductor for {kind} and uses the backend aot_eager")
    try:
        return aot_eager(graph, inputs)
    except (TorchDynamoException, UnsupportedFakeTensorException):
        raise  # torch._dynamo knows what to do
    except Exception as error:
        warn_once("torch.compile with aot_eager", f"failed, and the graph runs as it is: {error}")
        return graph.forward


def install(changes: Patches, kind: str) -> None:
    if kind in ("cpu", "mps"):
        return
    wrapper = torch._TorchCompileInductorWrapper
    call = wrapper.__call__

    @functools.wraps(call)
    def compile_there(self: Any, model: Any, inputs: Any) -> Any:
        if not _is_on(kind, model, inputs):
            return call(self, model, inputs)
        return _fall_back(model, inputs, kind)

    changes.patch(wrapper, "__call__", compile_there)
