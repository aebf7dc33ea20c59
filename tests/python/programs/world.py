"""A program runs line by line on the CPU and on the device; all tensors must stay equal.

Equal means: bytes (all NaNs are equal), dtype, shape, strides, offset, which tensors share memory,
the size of that memory, `requires_grad`, `is_leaf`, `grad`, the kind of `grad_fn`, `_version`, conj
and neg bits. An error must have the local type and text. One that only a kernel finds may come late
(docs/errors.md): then what the line was to make may be missing on the device, so everything that
the line mentions leaves the program.
"""

from __future__ import annotations

import copy
import io
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from helpers import DEVICE, same
from torch.utils._pytree import tree_leaves

Values = dict[str, Any]
TENSOR_NAME = re.compile(r"\bt\d+\b")
# Whether this is refused may depend on whether `out=` was resized before: not compared.
OVERLAP = "the input tensor and the written-to tensor refer to a single memory location"
MOST_BYTES = 1 << 16
MOST_TENSORS = 10


def bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    """All of a storage, as a tensor of bytes that shares it."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def growing(x: torch.Tensor, change: Callable[[torch.Tensor], Any]) -> Any:
    """Runs a function that may grow the tensor's memory, and fills the new part."""
    before = x.untyped_storage().nbytes()
    result = change(x)
    bytes_of(x.untyped_storage())[before:].fill_(1)
    return result


def loaded(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """The tensors after torch.save and torch.load."""
    file = io.BytesIO()
    torch.save([tensor for tensor in tensors if tensor.untyped_storage().nbytes()], file)
    file.seek(0)
    return copy.deepcopy(list(torch.load(file)))  # on the CPU they map the file and cannot grow


def grow(storage: torch.UntypedStorage, count: int) -> None:
    storage.resize_(storage.nbytes() + count)


def spread(x: torch.Tensor, value: Any) -> torch.Tensor:
    """Fills a tensor and the gaps between its elements."""
    bytes_of(x.untyped_storage()).fill_(1)
    return x.fill_(value)


def words(x: torch.Tensor) -> list[str]:
    """How a tensor is printed; where its lines break depends on the device's name."""
    text = re.sub(rf",\s*device='{x.device}'", "", repr(x))
    return text.split()


def nothing(_: Any) -> None:
    """For results that are computed but get no name."""


def new_side(device: str) -> Values:
    helpers = {
        function.__name__: function for function in (growing, loaded, grow, spread, words, nothing)
    }
    return {"torch": torch, "device": device, **helpers}


class World:
    """The two sides of a program. `errors_come_late`: a failed line may raise later."""

    def __init__(self, errors_come_late: bool) -> None:
        self.errors_come_late = errors_come_late
        self.sides = (new_side("cpu"), new_side(DEVICE))
        self.names: list[str] = []
        self.program: list[str] = []
        self.made = 0
        torch.manual_seed(0)

    def local(self, name: str) -> torch.Tensor:
        return self.sides[0][name]

    def run(self, line: str) -> None:
        """Runs the line on both sides and compares the results, mostly without a wait."""
        before = {name: [id(side[name]) for side in self.sides] for name in self.names}
        sizes = {name: self.local(name).untyped_storage().nbytes() for name in self.names}
        random_state = torch.get_rng_state()
        expected, error = outcome(line, self.sides[0])
        if DEVICE == "cpu":  # both sides draw from one generator
            torch.set_rng_state(random_state)
        actual, raised = outcome(line, self.sides[1])
        self.program.append(line)
        if error is not None:
            self.note(f"  # {type(error).__name__}: {error}")
            self.check_error(line, error, raised, actual)
            late_error([])  # other failures of this line
            self.fill_grown(sizes)
            return
        assert raised is None, f"only the device raises {type(raised).__name__}: {raised}"
        self.names = [name for name in self.names if name in self.sides[0]]
        self.bind(tree_leaves(expected), tree_leaves(actual), before)
        self.compare_metadata()

    def fill_grown(self, sizes: dict[str, int]) -> None:
        """Fills what a failed line has added to `out=`."""
        for name in self.names:
            for side in self.sides:
                bytes_of(side[name].untyped_storage())[sizes[name] :].fill_(1)

    def note(self, text: str) -> None:
        self.program[-1] += text

    def bind(self, expected: list[Any], actual: list[Any], before: dict[str, list[int]]) -> None:
        """New tensors get a name."""
        assert len(actual) == len(expected)
        bound = []
        for pair in zip(expected, actual, strict=True):
            if not isinstance(pair[0], torch.Tensor):
                assert same_number(*pair), f"{pair[1]} is not {pair[0]}"
                continue
            known = [name for name, ids in before.items() if id(pair[0]) == ids[0]]
            assert known == [name for name, ids in before.items() if id(pair[1]) == ids[1]]
            if known:
                continue
            bound.append(self.add(*pair))
        if bound:
            self.program[-1] = f"{', '.join(bound)} = {self.program[-1]}"
        while len(self.names) > MOST_TENSORS:
            self.forget(self.names[0])
        for name in list(self.names):
            if self.local(name).untyped_storage().nbytes() > MOST_BYTES:
                self.forget(name)

    def add(self, expected: torch.Tensor, actual: torch.Tensor) -> str:
        name = f"t{self.made}"
        self.made += 1
        self.names.append(name)
        self.sides[0][name], self.sides[1][name] = expected, actual
        return name

    def forget(self, name: str) -> None:
        self.names.remove(name)
        for side in self.sides:
            side.pop(name, None)
        self.note(f"; del {name}")

    def check_error(
        self, line: str, error: Exception, raised: Exception | None, actual: Any
    ) -> None:
        if "out=" in line and OVERLAP in str(error):
            self.give_up(line)
        elif raised is None:
            self.check_late_error(line, error, tree_leaves(actual))
        elif without_device(raised) == without_device(error):
            assert type(raised) is type(error), f"the device raises {type(raised).__name__}"
            # A kernel may refuse before or after it resizes `out=`; a _foreach_ may have written
            # some.
            if "out=" not in line and "_foreach_" not in line:
                self.compare_metadata()
            self.give_up(line)
        elif OVERLAP in str(raised):
            self.give_up(line)  # both refuse; which reason comes first depends on the kernel
        else:
            # The line makes several calls: a later one was refused at once, and the first fails
            # late.
            self.note(f" (on the device {type(raised).__name__}: {raised})")
            self.check_late_error(line, error, [])

    def check_late_error(self, line: str, error: Exception, results: list[Any]) -> None:
        live = [self.sides[1][name] for name in self.names]
        late = late_error([value for value in results + live if isinstance(value, torch.Tensor)])
        assert late is not None, f"only the CPU raises {type(error).__name__}: {error}"
        assert without_device(error) in without_device(late), f"late, but: {late}"
        self.give_up(line)

    def give_up(self, line: str) -> None:
        """After every error: a line may fail late in one program and at the call in the next.

        Both programs must go on in the same way, because hypothesis repeats them.
        """
        self.retire(line)
        for name in list(self.names):
            # A value that its graph has saved may be missing.
            if self.errors_come_late or self.local(name).grad_fn is not None:
                self.forget(name)

    def retire(self, line: str) -> None:
        """Forgets what a failed line mentions and what shares memory or versions with it."""
        mentioned = set(TENSOR_NAME.findall(line)) & set(self.names)
        for side in self.sides:
            storages = {storage_of(side[name]) for name in mentioned}
            mentioned |= {name for name in self.names if storage_of(side[name]) in storages}
        versions = {name: [side[name]._version for side in self.sides] for name in self.names}
        mentioned |= {name for name, (local, there) in versions.items() if local != there}
        for name in sorted(mentioned):
            self.forget(name)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
        """Yields every live tensor and its gradient."""
        for name in self.names:
            local, there = (side[name] for side in self.sides)
            yield name, local, there
            if local.is_leaf or local.retains_grad:
                assert (there.grad is None) == (local.grad is None), f"{name}.grad"
                if local.grad is not None:
                    yield f"{name}.grad", local.grad, there.grad

    def compare_metadata(self) -> None:
        groups: tuple[dict[int, int], dict[int, int]] = ({}, {})
        for name, local, there in self.tensors():
            expected, actual = metadata(local), metadata(there)
            if expected["storage"]:
                expected["shares"] = groups[0].setdefault(storage_of(local), len(groups[0]))
                actual["shares"] = groups[1].setdefault(storage_of(there), len(groups[1]))
            assert actual == expected, f"{name}: {difference(actual, expected)}"

    def compare_values(self) -> None:
        """Downloads each storage once."""
        contents: dict[int, torch.Tensor] = {}
        for name, local, there in self.tensors():
            key = storage_of(there)
            if key not in contents:
                contents[key] = bytes_of(there.untyped_storage()).cpu()
            if torch.equal(contents[key], bytes_of(local.untyped_storage())):
                continue
            copy = torch.empty(0, dtype=there.dtype).set_(
                contents[key].untyped_storage(), there.storage_offset(), there.shape, there.stride()
            )
            assert same(copy, plain(local)), f"{name}: {copy}\nis not\n{plain(local)}"


def outcome(line: str, side: Values) -> tuple[Any, Exception | None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            try:
                code = compile(line, "<program>", "eval")
            except SyntaxError:
                code = compile(line, "<program>", "exec")
            return eval(code, side), None
        except Exception as error:
            # A traceback would keep tensors alive.
            return None, error.with_traceback(None)


def without_device(error: Exception) -> str:
    text = re.sub(rf"(?:{DEVICE}|CPU)(\w+)Type", r"torch.\1Tensor", str(error))
    return text.replace(f"{DEVICE}:0", "cpu").replace(DEVICE, "cpu")


def late_error(values: list[Any]) -> Exception | None:
    """What reading one of these raises, or else synchronize()."""
    reads = [lambda value=value: bytes_of(value.untyped_storage()).cpu() for value in values]
    for read in [*reads, torch.get_device_module(DEVICE).synchronize]:
        try:
            read()
        except RuntimeError as error:
            return error
    return None


def storage_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The elements in memory, without conj and neg bits."""
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
        tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
    )


def metadata(tensor: torch.Tensor) -> dict[str, Any]:
    return {
        "dtype": tensor.dtype,
        "shape": tuple(tensor.shape),
        "strides": tensor.stride(),
        "offset": tensor.storage_offset(),
        "storage": tensor.untyped_storage().nbytes(),
        "requires_grad": tensor.requires_grad,
        "is_leaf": tensor.is_leaf,
        "grad_fn": type(tensor.grad_fn).__name__,
        "version": tensor._version,
        "conj": tensor.is_conj(),
        "neg": tensor.is_neg(),
        "view": tensor._is_view(),
    }


def difference(actual: dict[str, Any], expected: dict[str, Any]) -> str:
    return ", ".join(
        f"{key} is {actual.get(key)}, not {expected[key]}"
        for key in expected
        if actual.get(key) != expected[key]
    )


def same_number(expected: Any, actual: Any) -> bool:
    return actual == expected or (actual != actual and expected != expected)
