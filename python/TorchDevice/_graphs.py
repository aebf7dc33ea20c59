"""CUDA graphs elsewhere: PyTorch's own `torch.cuda.graph` and `make_graphed_callables`, which use
the `CUDAGraph` of the device in use: on a remote one a `torch_remote.Graph` (`_target_remote.py`),
elsewhere a `CpuGraph` or `MpsGraph`, which call the operators of the block again.
"""

from __future__ import annotations

import functools
import itertools
import sys
import warnings
from typing import Any

import torch
from torch.cuda import graphs as _torchs

from torch_remote_patches import Patches, dot

from ._log import warn_once
from ._recorder import (
    Call,
    Recorder,
    Step,
    check_not_recording,
    current_recorder,
    repeat_calls,
)

_MODES = ("global", "thread_local", "relaxed")
_NO_CUDA_GRAPH = "there is no cudaGraph_t here; call replay() and debug_dump()"
_pools = itertools.count(1)


def is_recording() -> bool:
    """Whether this thread is in a block that is recorded for the CPU or MPS."""
    return current_recorder() is not None


def graph_pool_handle() -> tuple[int, int]:
    """A name for a pool. It changes nothing: graphs of the device in use share memory by itself."""
    return 0, next(_pools)


def _refused(name: str) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"CUDAGraph.{name}(): {_NO_CUDA_GRAPH}")

    return method


class GraphAnswers:
    """What `torch.cuda.CUDAGraph` is, over a class that has `_begin()`, `_end()`, `replay()`, …"""

    def __init__(self, keep_graph: bool = False) -> None:
        super().__init__()
        self._pool: Any = None

    raw_cuda_graph = _refused("raw_cuda_graph")
    raw_cuda_graph_exec = _refused("raw_cuda_graph_exec")
    get_graph_data = _refused("get_graph_data")
    begin_capture_to_if_node = _refused("begin_capture_to_if_node")
    end_capture_to_conditional_node = _refused("end_capture_to_conditional_node")

    def capture_begin(
        self,
        pool: Any = None,
        capture_error_mode: str = "global",
        check_input_liveness: bool = False,
    ) -> None:
        """Starts to record. The arguments change nothing: a graph keeps the tensors it reads."""
        this: Any = self
        if capture_error_mode not in _MODES:
            raise RuntimeError(
                "Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, "
                f"got {capture_error_mode}"
            )
        if this._is_captured:
            raise RuntimeError(
                "This CUDAGraph instance already owns a captured graph. To capture a new graph, "
                "create a new instance."
            )
        if torch.cuda.current_stream() == torch.cuda.default_stream():
            raise RuntimeError(
                "CUDA graphs must be captured on a non-default stream. (However, after capture, "
                "it's ok to replay them on the default stream.)"
            )
        this._begin()
        self._pool = (next(_pools), 0) if pool is None else pool

    def capture_end(self) -> None:
        this: Any = self
        this._end()
        if this._calls == 0:
            warnings.warn(
                "The CUDA Graph is empty. This usually means that the graph was attempted to be "
                "captured on wrong device or stream.",
                stacklevel=4,  # the block's line: PyTorch's __exit__ and ours are between
            )

    def instantiate(self) -> None:
        """Does nothing: a graph can be replayed when it is captured."""
        self._check_is_captured("instantiate")

    def pool(self) -> Any:
        self._check_is_captured("pool")
        return self._pool

    def register_generator_state(self, generator: torch.Generator) -> None:
        """Does nothing: every generator that the block uses is part of the graph."""

    def enable_debug_mode(self) -> None:
        """Does nothing: `debug_dump()` always works."""

    def debug_dump(self, debug_path: Any) -> None:
        """Writes the operators as a graph in Graphviz's language."""
        self._check_is_captured("debug_dump")
        this: Any = self
        dot.write_chain(debug_path, this._describe_calls())

    def _check_is_captured(self, name: str) -> None:
        this: Any = self
        if not this._is_captured:
            raise RuntimeError(f"Called CUDAGraph::{name} without a preceding successful capture.")


class _OperatorGraph:
    """Operators of the CPU or MPS. As `torch_remote.Graph`, but a replay calls them one by one."""

    _kind = "cpu"

    def __init__(self) -> None:
        warn_once("torch.cuda.CUDAGraph", "calls its operators again, one by one")
        self._recorder: Recorder | None = None
        self._captured: list[Step] | None = None

    @property
    def _is_captured(self) -> bool:
        return self._captured is not None

    @property
    def _calls(self) -> int:
        return len(self._describe_calls())

    def _describe_calls(self) -> list[str]:
        return [str(call.function) for call in self._captured or () if isinstance(call, Call)]

    def _begin(self) -> None:
        if is_recording():
            raise RuntimeError("this thread captures a graph already")
        self._recorder = Recorder(self._kind)
        self._recorder.__enter__()

    def _end(self) -> None:
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            raise RuntimeError("this graph is not being captured")
        recorder.__exit__(None, None, None)
        recorder.end()
        recorder.check_is_whole()
        self._captured = recorder.calls

    def replay(self) -> None:
        """Calls what the block called, in its order."""
        check_not_recording("the replay of a graph")
        if self._captured is None:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        repeat_calls(self._captured)

    def reset(self) -> None:
        if self._recorder is not None:
            raise RuntimeError("this graph is being captured")
        self._captured = None


class CpuGraph(GraphAnswers, _OperatorGraph):
    """`torch.cuda.CUDAGraph` on the CPU"""


class MpsGraph(CpuGraph):
    """`torch.cuda.CUDAGraph` on MPS"""

    _kind = "mps"


class _StreamBlock:
    """A stream's block that may be left twice."""

    def __init__(self, block: Any) -> None:
        self._block = block
        self._is_open = False

    def __enter__(self) -> None:
        self._block.__enter__()
        self._is_open = True

    def __exit__(self, *exception: object) -> None:
        if self._is_open:
            self._is_open = False
            self._block.__exit__(*exception)


class graph(_torchs.graph):  # type: ignore[misc]
    """PyTorch's own `with torch.cuda.graph(g):`. Gives the stream back if the capture fails too."""

    stream_ctx: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.stream_ctx = _StreamBlock(self.stream_ctx)

    def __enter__(self) -> None:
        try:
            super().__enter__()
        except BaseException:
            self.stream_ctx.__exit__(*sys.exc_info())
            raise

    def __exit__(self, *exception: object) -> None:
        try:
            super().__exit__(*exception)
        finally:
            self.stream_ctx.__exit__(*exception)


def graph_class() -> Any:
    """A class of `with torch.cuda.graph(g):` whose stream is on the device in use."""
    return type("graph", (graph,), {"__doc__": graph.__doc__, "default_capture_stream": None})


_make_callables = _torchs.make_graphed_callables


def make_graphed_callables(kind: str, *args: Any, **kwargs: Any) -> Any:
    """PyTorch's own, with its question about autocast, which it asks for CUDA."""
    if torch.is_autocast_enabled(kind) and torch.is_autocast_cache_enabled():
        raise RuntimeError(
            "make_graphed_callables does not support the autocast caching. Please set "
            "`cache_enabled=False`."
        )
    return _make_callables(*args, **kwargs)


def _checked(check: Any) -> Any:
    """An optimizer's check of `capturable`, which PyTorch makes on CUDA only."""

    @functools.wraps(check)
    def call(optimizer: Any) -> None:
        if not torch.compiler.is_compiling() and torch.cuda.is_current_stream_capturing():
            groups = optimizer.param_groups
            if not all(group["capturable"] or group.get("fused") for group in groups):
                raise RuntimeError(
                    "Attempting CUDA graph capture of step() for an instance of "
                    f"{type(optimizer).__name__} but param_groups' capturable is False."
                )
        check(optimizer)

    return call


def _with_kind(supported: Any, kind: str) -> Any:
    @functools.wraps(supported)
    def devices(*args: Any, **kwargs: Any) -> list[str]:
        return [*supported(*args, **kwargs), kind]

    return devices


def install(changes: Patches, kind: str) -> None:
    """What PyTorch's own functions ask while they capture, and what its optimizers allow."""
    if not hasattr(torch._C, "_host_emptyCache"):  # of pinned memory; not in a build for the CPU
        changes.patch(torch._C, "_host_emptyCache", lambda: None)
    optimizer = torch.optim.Optimizer
    checks = ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check")
    check = next(name for name in checks if hasattr(optimizer, name))  # the first: torch 2.13
    changes.patch(optimizer, check, _checked(getattr(optimizer, check)))
    name = "_get_capturable_supported_devices"  # PyTorch's list has the remote device, not the CPU
    for module in [each for key, each in sys.modules.items() if key.startswith("torch.optim.")]:
        if kind in ("cpu", "mps") and name in vars(module):
            changes.patch(module, name, _with_kind(vars(module)[name], kind))
