"""CUDA graphs elsewhere: the operators of a block are recorded, and called again by `replay()`.

Results of a replay are written to the tensors that the block made, as with a CUDA graph.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from ._log import warn_once

_capturing: list[Graph] = []


def is_capturing() -> bool:
    """Whether a block of `torch.cuda.graph` is open."""
    return bool(_capturing)


def graph_pool_handle() -> tuple[int, int]:
    """A name for a pool; recorded graphs need no memory of their own."""
    return 0, 0


def make_graphed_callables(callables: Any, sample_args: Any, *args: Any, **kwargs: Any) -> Any:
    """The callables as they are: what cannot be captured is called."""
    return callables


class Graph:
    """Stands in for `torch.cuda.CUDAGraph`."""

    def __init__(self, keep_graph: bool = False) -> None:
        warn_once("torch.cuda.CUDAGraph", "calls its operators again, one by one")
        self._calls: list[tuple[Any, Any, Any, list[torch.Tensor]]] = []
        self._recorder: _Recorder | None = None

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        self._calls.clear()
        self._recorder = _Recorder(self)
        self._recorder.__enter__()
        _capturing.append(self)

    def capture_end(self) -> None:
        if self._recorder is not None:
            _capturing.remove(self)
            self._recorder.__exit__(None, None, None)
            self._recorder = None

    def replay(self) -> None:
        """Calls what the block called, in its order."""
        with torch.no_grad():
            for function, args, kwargs, outputs in self._calls:
                _call_again(function, args, kwargs, outputs)

    def reset(self) -> None:
        self._calls.clear()

    def pool(self) -> tuple[int, int]:
        return graph_pool_handle()

    def instantiate(self) -> None:
        pass

    def enable_debug_mode(self) -> None:
        pass

    def debug_dump(self, debug_path: str) -> None:
        raise NotImplementedError("a recorded graph has no dump; print the model instead")


def _call_again(function: Any, args: Any, kwargs: Any, outputs: list[torch.Tensor]) -> None:
    made = [each for each in tree_flatten(function(*args, **kwargs))[0] if _is_tensor(each)]
    for old, new in zip(outputs, made, strict=True):
        if not _is_same_memory(old, new):  # an in-place operator has written there already
            old.copy_(new)


def _is_same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    same = one.untyped_storage()._cdata == other.untyped_storage()._cdata
    return bool(same and one.storage_offset() == other.storage_offset())


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _is_view(function: Any) -> bool:
    """Views of recorded tensors stay views of them: nothing to call again.

    Nor is there for `t_` and its like, whose tensor has its new shape already.
    """
    if torch.Tag.inplace_view in function.tags:
        return True
    returns = function._schema.returns
    return any(each.alias_info is not None and not each.alias_info.is_write for each in returns)


class _Recorder(TorchDispatchMode):  # type: ignore[misc]
    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self._graph = graph

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not _is_view(func):
            outputs = [each.detach() for each in tree_flatten(result)[0] if _is_tensor(each)]
            self._graph._calls.append((func, args, kwargs, outputs))
        return result


class graph:
    """`with torch.cuda.graph(g):`"""

    def __init__(self, cuda_graph: Graph, pool: Any = None, stream: Any = None, **kw: Any) -> None:
        self.cuda_graph = cuda_graph
        self._pool = pool

    def __enter__(self) -> None:
        self.cuda_graph.capture_begin(self._pool)

    def __exit__(self, *exception: object) -> None:
        self.cuda_graph.capture_end()
