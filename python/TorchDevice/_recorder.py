"""Records the operators of a block, for graphs of the CPU and MPS, which have no recorder in C++.

The block runs once, so that Python code sees tensors of the right shapes. At its end what it did is
taken back, as if it had only been captured: tensors that were there before have their values again,
generators their states, and what the block made is zero until the first replay.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_flatten, tree_map_only

_UNSUPPORTED, _INVALIDATED = 900, 901  # cudaErrorStreamCaptureUnsupported, …Invalidated

# Their results hold memory, and no value that a replay could write.
_ALLOCATIONS = {
    "aten::empty",
    "aten::empty_like",
    "aten::empty_permuted",
    "aten::empty_strided",
    "aten::new_empty",
    "aten::new_empty_strided",
}
# Their results are values of this process: torch.tensor(), torch.from_file().
_FROM_THE_HOST = {"aten::lift", "aten::lift_fresh", "aten::from_file"}
# Batch normalisation writes to these, and its schema does not say so.
_RUNNING = {"running_mean", "running_var"}
_COPIES = {"aten::copy_", "aten::_to_copy"}


def current_recorder() -> Recorder | None:
    """The one that this thread's operators go to, also those of its backward."""
    if torch.compiler.is_dynamo_compiling():  # which it does not do in a recorded block
        return None
    modes = reversed(_get_current_dispatch_mode_stack())
    return next((mode for mode in modes if isinstance(mode, Recorder)), None)


def check_not_recording(what: str) -> None:
    """Raises what CUDA raises where `what` is not possible while a stream captures."""
    recorder = current_recorder()
    if recorder is not None:
        recorder.refuse(what)


def _accelerator_error(text: str, code: int) -> RuntimeError:
    error: Any = getattr(torch, "AcceleratorError", RuntimeError)(text)
    error.error_code = code
    return error  # type: ignore[no-any-return]


class Call(NamedTuple):
    """An operator, with arguments and results that hold memory, and nothing of autograd."""

    function: Any
    args: Any
    kwargs: Any
    results: list[torch.Tensor]
    has_gradients: bool  # whether they were enabled, which some kernels ask (mkldnn_rnn_layer)

    def repeat(self) -> None:
        made = _tensors_of(self.function(*self.args, **self.kwargs))
        for old, new in zip(self.results, made, strict=True):
            if not _is_same_memory(old, new):  # an in-place operator has written there already
                old.copy_(new)


class _State:
    """The state that a generator has when a replay comes here."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator
        self.state = generator.get_state()
        self.is_wanted = False  # by a _Return

    def repeat(self) -> None:
        if self.is_wanted:
            self.state = self.generator.get_state()


class _Return:
    """The block has set a generator to a state that it had before, as fork_rng() does."""

    def __init__(self, state: _State) -> None:
        self.state = state
        state.is_wanted = True

    def repeat(self) -> None:
        self.state.generator.set_state(self.state.state)


Step = Call | _State | _Return


def repeat_calls(calls: list[Step]) -> None:
    """Calls what was recorded: no step of autograd, which finds no new version of a tensor."""
    # In inference mode, because the block may have made inference tensors.
    with torch.inference_mode(), torch._C._AutoDispatchBelowAutograd(), torch._C._DisableAutocast():
        for call in calls:
            if isinstance(call, Call):
                torch._C._set_grad_enabled(call.has_gradients)
            call.repeat()


def _tensors_of(values: Any) -> list[torch.Tensor]:
    return [each for each in tree_flatten(values)[0] if isinstance(each, torch.Tensor)]


def _memory_only(values: Any) -> Any:
    """The same, with tensors that share the memory and have the shape of now."""
    with torch._C._AutoDispatchBelowAutograd():
        return tree_map_only(torch.Tensor, lambda each: each.detach(), values)


def _storage_of(tensor: torch.Tensor) -> Any:
    """None: a sparse tensor has no storage."""
    return tensor.untyped_storage() if tensor.layout == torch.strided else None


def _is_same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    first, second = _storage_of(one), _storage_of(other)
    if first is None or second is None:
        return one is other
    return bool(first._cdata == second._cdata and one.storage_offset() == other.storage_offset())


def _written(function: Any, args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
    for i, argument in enumerate(function._schema.arguments):
        alias = argument.alias_info
        if (alias is not None and alias.is_write) or argument.name in _RUNNING:
            yield from _tensors_of(args[i] if i < len(args) else kwargs.get(argument.name))


def _makes_view(function: Any) -> bool:
    """Views share memory that replays write: there is nothing to call again.

    Nor is there for `t_` and its like: later calls have noted the new shape.
    """
    if torch.Tag.inplace_view in function.tags:
        return True
    aliases = [each.alias_info for each in function._schema.returns]
    return any(alias is not None and not alias.is_write for alias in aliases)


def _size_depends_on_data(function: Any, args: Any, kwargs: Any) -> bool:
    if torch.Tag.dynamic_output_shape not in function.tags:
        return False
    if function._schema.name in ("aten::index", "aten::_unsafe_index"):
        indices = _tensors_of(args[1])
        return any(each.dtype in (torch.bool, torch.uint8) for each in indices)
    return kwargs.get("output_size") is None  # repeat_interleave() may be told


class _Kept(dict[int, tuple[Any, Any]]):
    """Storages, which are kept so that their addresses are not used again, with a value each."""

    def has(self, tensor: torch.Tensor) -> bool:
        storage = _storage_of(tensor)
        return storage is not None and storage._cdata in self

    def add(self, tensor: torch.Tensor, value: Any = None) -> None:
        storage = _storage_of(tensor)
        if storage is not None and storage._cdata not in self:
            self[storage._cdata] = storage, value


class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Runs and notes the operators of a block on devices of a kind."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.calls: list[Step] = []
        self.spoiled_by = ""  # the first error; what was recorded is lost, as on CUDA
        self._kind = kind
        self._before = _Kept()  # with copies of their values
        self._made = _Kept()
        self._from_the_host = _Kept()
        self._states: dict[
            int, list[_State]
        ] = {}  # by generator: before the block, then later ones
        self._keep_state(torch.default_generator)
        if kind == "mps":
            self._keep_state(torch.mps._get_default_mps_generator())

    def refuse(self, what: str) -> NoReturn:
        error = (
            f"{what}: operation not permitted when stream is capturing: what the block computes "
            "has no value before the first replay"
        )
        self.spoiled_by = self.spoiled_by or error
        raise _accelerator_error(error, _UNSUPPORTED)

    def check_is_whole(self) -> None:
        if self.spoiled_by:
            error = "operation failed due to a previous error during capture"
            raise _accelerator_error(f"{error}: {self.spoiled_by}", _INVALIDATED)

    def end(self) -> None:
        """The block has ended."""
        with contextlib.suppress(RuntimeError):  # check_is_whole() raises it
            self._note_states()
        self._take_back()

    def _take_back(self) -> None:
        """As if the block had not run."""
        for storage, copy in self._before.values():
            if storage.nbytes() == copy.nbytes():
                storage.copy_(copy)
        for storage, _ in self._made.values():
            storage.fill_(0)
        for first, *_ in self._states.values():
            first.generator.set_state(first.state)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _is_composite(func):  # in inference mode
            with self:
                return func.decompose(*args, **kwargs)
        tensors = _tensors_of((args, kwargs))
        if func.namespace == "profiler" or not self._is_concerned(tensors, kwargs):
            return func(*args, **kwargs)
        self._check_can_be_recorded(func, args, kwargs, tensors)
        self._keep_what_changes(func, args, kwargs)
        noted = _memory_only((args, kwargs))
        self._note_states()
        result = func(*args, **kwargs)
        self._note(func, noted, tensors, result)
        for states in self._states.values():
            if not torch.equal(states[-1].generator.get_state(), states[-1].state):
                self._add_state(states[-1].generator)
        return result

    def _note_states(self) -> None:
        """Between two operators only the block itself sets the state of a generator."""
        for states in list(self._states.values()):
            now = states[-1].generator.get_state()
            if torch.equal(now, states[-1].state):
                continue
            same = next((each for each in reversed(states) if torch.equal(now, each.state)), None)
            if same is None:
                self.refuse("a seed, or a state of a generator that it did not have in the block")
            self.calls.append(_Return(same))
            self._add_state(same.generator)

    def _add_state(self, generator: torch.Generator) -> None:
        state = _State(generator)
        self.calls.append(state)
        self._states.setdefault(id(generator), []).append(state)

    def _is_concerned(self, tensors: list[torch.Tensor], kwargs: Any) -> bool:
        """On MPS the CPU's tensors are computed at once, as on CUDA."""
        devices = [each.device.type for each in tensors]
        devices += [torch.device(kwargs["device"]).type] if kwargs.get("device") else []
        return self._kind == "cpu" or self._kind in devices

    def _check_can_be_recorded(
        self, func: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor]
    ) -> None:
        reads = torch.Tag.data_dependent_output in func.tags
        reads = reads or _size_depends_on_data(func, args, kwargs)
        if self._kind != "cpu" and func._schema.name in _COPIES:
            target = args[0].device if func._schema.name == "aten::copy_" else kwargs.get("device")
            reads = target is not None and torch.device(target).type != self._kind
        if reads and not all(map(self._from_the_host.has, tensors)):
            self.refuse(func._schema.name)

    def _keep_what_changes(self, func: Any, args: Any, kwargs: Any) -> None:
        for tensor in _written(func, args, kwargs):
            storage = _storage_of(tensor)
            if storage is not None and not (self._made.has(tensor) or self._before.has(tensor)):
                self._before.add(tensor, storage.clone())
        for each in tree_flatten((args, kwargs))[0]:
            if isinstance(each, torch.Generator):
                self._keep_state(each)

    def _keep_state(self, generator: torch.Generator) -> None:
        if id(generator) not in self._states:
            self._add_state(generator)

    def _note(
        self, func: Any, noted: tuple[Any, Any], given: list[torch.Tensor], result: Any
    ) -> None:
        results = _tensors_of(result)
        if func._schema.name in _FROM_THE_HOST:
            for each in results:
                self._from_the_host.add(each)
            return
        if _makes_view(func):
            return
        old = _Kept()
        for each in given:
            old.add(each)
        for each in results:
            # Another library's operator may return a tensor that it keeps.
            if func.namespace == "aten" and not (old.has(each) or self._before.has(each)):
                self._made.add(each)
        if func._schema.name not in _ALLOCATIONS:
            has_gradients = torch.is_grad_enabled()
            self.calls.append(Call(func, *noted, _memory_only(results), has_gradients))


def _is_composite(function: Any) -> bool:
    return bool(
        torch._C._dispatch_has_kernel_for_dispatch_key(function.name(), "CompositeImplicitAutograd")
    )
