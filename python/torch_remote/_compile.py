"""`torch.compile` on remote tensors: each graph that AOTAutograd makes is a program of the server.

The graph's calls are recorded the first time it runs with tensors of some sizes (docs/graphs.md);
then each run is one message. A graph that cannot be a program runs call by call, and a line says
why.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

from . import _C
from ._backend import is_ours
from ._errors import RemoteError

_MOST_SIZES = 16  # of one graph, as programs at one time
_MOST_WAITS = 3  # recordings in a row that would have waited

_said: set[str] = set()


def _say(text: str) -> None:
    """One line for each text."""
    if text not in _said:
        _said.add(text)
        print(f"torch_remote: {text}", file=sys.stderr, flush=True)


def _tensors_of(node: Node) -> list[torch.Tensor]:
    values = tree_leaves(node.meta.get("val"))
    return [value for value in values if isinstance(value, torch.Tensor)]


def _computes_here(node: Node) -> bool:
    return any(not is_ours(tensor) for tensor in _tensors_of(node))


def _draws(node: Node) -> bool:
    tags = getattr(node.target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags


def _nodes(graph: GraphModule) -> Iterator[Node]:
    """Those of nested graphs too."""
    for module in graph.modules():
        if isinstance(module, GraphModule):
            yield from module.graph.nodes


_RUN_HERE = ("PrivateUse1", "CompositeExplicitAutograd", "CompositeImplicitAutograd")


def _operators_of(node: Node) -> Iterator[torch._ops.OpOverload]:
    return (each for each in (node.target, *node.args) if isinstance(each, torch._ops.OpOverload))


def _is_of_this_process(operator: torch._ops.OpOverload) -> bool:
    """Whether it has a kernel of the program's own, which a recording calls only once."""
    if operator.namespace in ("aten", "prims", "prim", "torch_remote"):
        return False
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return any(has_kernel(operator.name(), key) for key in _RUN_HERE)


def _why_no_program(graph: GraphModule) -> str | None:
    """What a recording would not notice: values of the CPU, which it takes as they are."""
    constant: set[Node] = set()
    for node in _nodes(graph):
        if getattr(node.target, "__name__", "") == "with_effects":  # it has an argument on the CPU
            return f"{node.args[1]} has an effect beside its results"
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            for tensor in _tensors_of(node):
                if not is_ours(tensor) or tensor.layout != torch.strided:
                    return f"an argument is a {tensor.layout} tensor on {tensor.device}"
    for node in _nodes(graph):
        if node.op == "get_attr":
            constant.add(node)
        elif node.op == "call_function":
            for operator in _operators_of(node):
                if _is_of_this_process(operator):
                    return f"{operator} is an operator of the program itself"
            if constant.issuperset(node.all_input_nodes) and not _draws(node):
                constant.add(node)
            elif _computes_here(node):
                return f"{node.target} computes on the CPU"
    return None


_BY_PLACE = ("as_strided", "view_as_complex", "view.dtype")


def _reads_by_place(graph: GraphModule) -> bool:
    """Whether a call counts a view's offset from the beginning of the storage."""
    names = (str(getattr(node.target, "__name__", "")) for node in _nodes(graph))
    return any(name.startswith(_BY_PLACE) for name in names)


class _Compiled:
    """One graph. AOTAutograd gives it its arguments as a list, which it empties."""

    def __init__(self, graph: GraphModule, call: Callable[[list[Any]], Any]) -> None:
        self._boxed_call = True  # of the object: AOTAutograd copies its attributes
        self._call = call  # the calls one by one
        self._functions: list[_C.Function] = []  # the last used first
        self._misses = 0  # calls in a row that no function fits
        self._waits = 0  # recordings in a row that would have waited
        self._may_move = not _reads_by_place(graph)
        self._is_program = True
        if why := _why_no_program(graph):
            self._refuse(why)

    def __call__(self, arguments: list[Any]) -> Any:
        functions = self._functions
        for place, function in enumerate(functions):
            results = function(arguments)
            if results is not None:
                arguments.clear()
                self._misses = 0
                if place > 0:
                    self._functions = [function, *functions[:place], *functions[place + 1 :]]
                return results
        if not self._is_program or _C.is_recording():
            return self._call(arguments)
        return self._record(arguments)

    def _record(self, arguments: list[Any]) -> Any:
        self._misses += 1
        if self._misses > _MOST_SIZES:
            self._refuse("its sizes do not come again")
            return self._call(arguments)
        kept = list(arguments)
        recording = None
        try:
            recording = _C.FunctionRecording(kept, self._may_move)
            results = list(self._call(arguments))
            function = recording.finish(results)
        except BaseException as error:
            if recording is not None:
                recording.abandon()
            if isinstance(error, RemoteError) or not isinstance(error, Exception):
                raise  # that of an earlier call
            if isinstance(error, NotImplementedError | torch.AcceleratorError):
                self._note_failure(str(error))
            return self._call(kept)
        self._waits = 0
        if function is None:  # only views: nothing was left undone
            return results
        del results
        made = function(kept)
        if made is None:  # a tensor that no recording takes
            self._refuse("an argument is on another server, or on a slice of a storage")
            return self._call(kept)
        self._functions = [function, *self._functions][:_MOST_SIZES]
        return made

    def _note_failure(self, error: str) -> None:
        """Of a recording. A call may wait because only the server knows the layout of its result.

        Made once, it waits no more.
        """
        operator, waits, _ = error.partition(": operation not permitted")
        if not waits:
            return self._refuse(error.partition("\n")[0])
        self._waits += 1
        if self._waits == _MOST_WAITS:
            self._refuse(f"{operator} cannot be recorded")

    def _refuse(self, why: str) -> None:
        self._is_program = False
        _say(f"torch.compile: a graph runs call by call: {why}")


def _compile(graph: GraphModule, inputs: Sequence[Any]) -> _Compiled:
    from torch._dynamo.backends.debugging import boxed_nop

    return _Compiled(graph, boxed_nop(graph, list(inputs)))


def _values(graph: GraphModule) -> Iterator[Any]:
    """What a graph uses and makes: its own tensors, and an example of each node's result."""
    yield from graph.parameters()
    yield from graph.buffers()
    for module in graph.modules():
        if isinstance(module, GraphModule):
            for node in module.graph.nodes:
                yield node.meta.get("example_value", node.meta.get("val"))


def uses_remote(graph: GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether a graph of torch._dynamo uses or makes a remote tensor."""
    values = tree_leaves([*inputs, *_values(graph)])
    return any(isinstance(value, torch.Tensor) and is_ours(value) for value in values)


def compile_graph(graph: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """The backend of torch.compile for graphs with remote tensors."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.exc import TorchDynamoException
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._subclasses.fake_tensor import UnsupportedFakeTensorException

    compiler = aot_autograd(
        fw_compiler=_compile,
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )
    try:
        compiled: Callable[..., Any] = compiler(graph, inputs)
        return compiled
    except (TorchDynamoException, UnsupportedFakeTensorException):
        raise  # torch._dynamo knows what to do
    except Exception as error:
        why = str(error).partition("\n")[0]
        _say(f"torch.compile: a graph runs as it is, because AOTAutograd failed: {why}")
        as_it_is: Callable[..., Any] = graph.forward
        return as_it_is
