"""All changes of torch_remote to torch's Python can be taken back and made again."""

from __future__ import annotations

import importlib
import itertools
import types
from pathlib import Path
from typing import Any

import pytest
from helpers import assert_runs

from torch_remote import _patches
from torch_remote_patches import Patches

pytestmark = pytest.mark.slow

# Imports everything that is changed first, to see it unchanged.
SETUP = """
import torch
import torch._inductor.compile_fx
import torch.cuda.jiterator
import torch.nested._internal.ops
import torch.utils.cpp_extension
from torch_state import differences, snapshot

before = snapshot()
import torch_remote
from torch_remote import _patches

# Goes with the name of the private backend, which PyTorch lets a process choose once.
NAME = {"torch.remote", "torch.utils.backend_registration._privateuse1_backend_name"}
for kind in ("_autograd.DeviceType", "_profiler.ProfilerActivity"):
    NAME |= {f"torch._C.{kind}.{name}" for name in ("REMOTE", "__repr__", "__str__", "name")}

def changes():
    return differences(before, snapshot()) - NAME

installed = changes()
_patches.undo_all()
"""


def run(code: str) -> str:
    return assert_runs(SETUP + code, PYTHONPATH=str(Path(__file__).parent))


def test_after_undo_every_attribute_of_torch_is_the_original() -> None:
    assert run("print(len(installed) > 50, changes())") == "True set()"


def test_after_undo_the_same_changes_can_be_made_again_and_undone_again() -> None:
    code = """
torch_remote._change_torch()
hooks = {each for each in changes() ^ installed if "_hooks[" in each}  # numbered anew each time
print(changes() ^ installed == hooks)
_patches.undo_all()
print(changes())
torch_remote._change_torch()
x = torch.ones(2, device="remote", requires_grad=True)
torch.optim.SGD([x], 0.1).step()
print(torch.nn.Linear(1, 1).remote().weight.is_remote, x)
"""
    assert run(code).splitlines() == [
        "True",
        "set()",
        "True tensor([1., 1.], device='remote:0', requires_grad=True)",
    ]


# Both change these: torch_remote's and TorchDevice's functions call each other in any order.
BOTH = """
import torch
import torch._inductor.compile_fx
import torch.cuda.jiterator
import torch.nested._internal.ops
import torch.utils.cpp_extension
from torch.nn import DataParallel, Linear
from torch.nn.parallel import DistributedDataParallel, comm
from torch_state import differences, snapshot

before = snapshot()
was = set(vars(torch._C))
inits = {each: each.__init__ for each in (DataParallel, DistributedDataParallel)}
import FIRST
import SECOND
from torch_remote import _patches

def layers(owner):
    made, function = [], owner.__init__
    while function is not inits[owner]:
        made.append(function.__globals__["__name__"].partition(".")[0])
        function = function.__wrapped__
    return made

def use(model, x):
    expected = model(x)
    spread = DataParallel(model.to("remote"))
    assert spread.device_ids == [0, 1], spread.device_ids
    assert torch.allclose(spread(x.to("remote")).cpu(), expected)
    chunks = comm.scatter(x.to("remote"), [0, 1])
    assert [str(each.device) for each in chunks] == ["remote:0", "remote:1"]
    assert comm.gather(chunks, destination="cpu").equal(x)
    assert [each.device.index for each in comm.broadcast(x.to("remote"), [0, 1])] == [0, 1]
    assert DataParallel(Linear(2, 2)).device_ids == []

torch_remote._backend.simulate(2)
both = ["TorchDevice", "torch_remote"]
assert layers(DataParallel) == both and layers(DistributedDataParallel) == both
use(Linear(4, 2), torch.arange(24.0).reshape(6, 4))
undo = {"TorchDevice": TorchDevice.disable, "torch_remote": _patches.undo_all}
undo.pop("UNDONE")()
(left,) = undo
assert layers(DataParallel) == layers(DistributedDataParallel) == [left]
assert hasattr(torch._C, "_scatter") == (left == "torch_remote" or "_scatter" in was)
if left == "torch_remote":
    use(Linear(4, 2), torch.arange(24.0).reshape(6, 4))
undo.popitem()[1]()
NAME = {"torch.remote", "torch.utils.backend_registration._privateuse1_backend_name"}
for kind in ("_autograd.DeviceType", "_profiler.ProfilerActivity"):
    NAME |= {f"torch._C.{kind}.{name}" for name in ("REMOTE", "__repr__", "__str__", "name")}
print(differences(before, snapshot()) - NAME)
"""


@pytest.mark.parametrize("undone", ["TorchDevice", "torch_remote"])
@pytest.mark.parametrize("first", ["TorchDevice", "torch_remote"])
def test_both_packages_in_any_order_work_and_can_be_undone_in_any_order(
    first: str, undone: str
) -> None:
    second = "torch_remote" if first == "TorchDevice" else "TorchDevice"
    code = BOTH.replace("FIRST", first).replace("SECOND", second).replace("UNDONE", undone)
    variables = {"TORCHDEVICE_POLICY": "foreign", "TORCHDEVICE_LOG_LEVEL": "ERROR"}
    assert assert_runs(code, PYTHONPATH=str(Path(__file__).parent), **variables) == "set()"


def test_a_module_imported_after_undo_is_not_changed() -> None:
    code = """
import torch, torch_remote
torch_remote._patches.undo_all()
import torch.utils.cpp_extension as extension
print(extension._jit_compile.__module__, hasattr(extension._jit_compile, "__wrapped__"))
"""
    assert assert_runs(code) == "torch.utils.cpp_extension False"


def test_a_module_imported_later_is_changed_and_its_change_is_undone() -> None:
    code = """
import torch, torch_remote
import torch.utils.cpp_extension as extension
changed = extension._jit_compile
torch_remote._patches.undo_all()
print(changed is not extension._jit_compile, changed.__wrapped__ is extension._jit_compile)
"""
    assert assert_runs(code) == "True True"


LOADING = """
from torch_remote_patches import Patches

changes = Patches()
changes.change_module(__name__, lambda module: changes.patch(module, "answer", module.later))

def answer():
    return "original"

def later():
    return "changed"

if fails:
    raise ValueError
"""


def test_a_module_that_is_being_imported_is_changed_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "loading_module.py").write_text("fails = False" + LOADING)
    module = importlib.import_module("loading_module")
    assert module.answer() == "changed"
    module.changes.undo_all()
    assert module.answer() == "original"
    (tmp_path / "failing_module.py").write_text("fails = True" + LOADING)
    with pytest.raises(ValueError):
        importlib.import_module("failing_module")


def test_remote_tensors_work_without_the_changes() -> None:
    code = """
import torch, torch_remote
torch_remote._patches.undo_all()
y = torch.ones(3, device="remote") * 2
print(y.device, y.cpu().tolist())
"""
    assert assert_runs(code) == "remote:0 [2.0, 2.0, 2.0]"


class Base:
    inherited = 1

    def method(self) -> int:
        return 1


class Owner(Base):
    plain: Any = 2

    @property
    def computed(self) -> int:
        return 3

    @classmethod
    def made(cls) -> int:
        return 4

    @staticmethod
    def alone() -> int:
        return 5


@pytest.fixture
def no_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty list of changes, so that a test does not undo those of this process."""
    monkeypatch.setattr(_patches._changes, "_undo", [])


@pytest.mark.usefixtures("no_changes")
@pytest.mark.parametrize(
    "name", ["plain", "computed", "made", "alone", "inherited", "method", "added"]
)
@pytest.mark.parametrize("new", [None, property(lambda self: 7), classmethod(lambda cls: 8)])
def test_undo_puts_back_the_very_entry_of_the_owner(name: str, new: Any) -> None:
    before = dict(vars(Owner))
    _patches.patch(Owner, name, new)
    _patches.patch(Owner, name, "twice")
    assert vars(Owner)[name] == "twice"
    _patches.undo_all()
    after = dict(vars(Owner))
    assert after.keys() == before.keys()
    assert all(after[each] is before[each] for each in before)


@pytest.mark.usefixtures("no_changes")
def test_undo_goes_backwards_and_only_once() -> None:
    order: list[int] = []
    for number in range(3):
        _patches.on_undo(lambda number=number: order.append(number))
    _patches.undo_all()
    _patches.undo_all()
    assert order == [2, 1, 0]


@pytest.mark.usefixtures("no_changes")
def test_entries_of_a_table_are_put_back_or_removed() -> None:
    table = {"here": 1}
    _patches.patch_item(table, "here", 2)
    _patches.patch_item(table, "new", None)
    assert table == {"here": 2, "new": None}
    _patches.undo_all()
    assert table == {"here": 1}


@pytest.mark.usefixtures("no_changes")
def test_what_other_code_sets_in_a_block_is_noted() -> None:
    module = types.ModuleType("example")
    module.kept = module.replaced = original = object()  # type: ignore[attr-defined]
    with _patches.noting(module):
        module.replaced = module.added = 1  # type: ignore[attr-defined]
    _patches.undo_all()
    assert module.replaced is original  # type: ignore[attr-defined]
    assert not hasattr(module, "added")


def test_two_lists_change_one_attribute_and_are_undone_in_any_order() -> None:
    def adding(text: str) -> Any:
        return lambda below: (below or "") + text

    for order in itertools.permutations("abc"):
        for has_original in (True, False):
            module = types.ModuleType("example")
            if has_original:
                module.value = "original "  # type: ignore[attr-defined]
            lists = {name: Patches() for name in "abc"}
            for name, changes in lists.items():
                changes.wrap(module, "value", adding(name))
            left = "abc"
            for name in order:
                whole = ("original " if has_original else "") + left
                assert module.value == whole
                lists[name].undo_all()
                left = left.replace(name, "")
            assert vars(module).get("value") == ("original " if has_original else None)


def test_a_plain_change_on_top_stays_and_what_is_below_it_goes() -> None:
    module, table = types.ModuleType("example"), {"key": "original"}
    module.value = "original"  # type: ignore[attr-defined]
    below, above = Patches(), Patches()
    for changes in (below, above):
        changes.patch(module, "value", new := object())
        changes.patch_item(table, "key", str(new))
    below.undo_all()
    assert (module.value, table["key"]) == (new, str(new))
    above.undo_all()
    assert (module.value, table["key"]) == ("original", "original")


def test_a_change_of_another_library_between_two_lists_is_kept() -> None:
    module = types.ModuleType("example")
    module.value = "original"  # type: ignore[attr-defined]
    below, above = Patches(), Patches()
    below.patch(module, "value", "below")
    module.value = "theirs"  # type: ignore[attr-defined]
    above.wrap(module, "value", lambda value: value + " above")
    below.undo_all()
    assert module.value == "theirs above"
    above.undo_all()
    assert module.value == "theirs"
