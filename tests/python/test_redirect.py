"""TorchDevice: what a device request becomes, on the CPU and on the embedded remote device."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import DEADLINE, assert_runs
from redirecting import QUIET, redirected

import TorchDevice

pytestmark = pytest.mark.slow

ASKED: list[Any] = ["cuda", "cuda:0", "mps", "mps:0", "cpu", "cpu:0", None, 0]


@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_every_request_gets_the_device_in_use(used: str, asked: Any) -> None:
    assert str(torch.zeros(2, device=asked).device) == used
    if asked is not None:
        assert str(torch.zeros(2).to(asked).device) == used
        assert str(torch.device(asked)) in (used, str(asked) if used == "cpu" else used)


@pytest.mark.parametrize("asked", ASKED[:6], ids=str)
def test_a_device_object_is_the_same_request(used: str, asked: str) -> None:
    with TorchDevice.cpu_override():
        plain = torch.empty(0, device="cpu").device
    assert plain.type == "cpu"
    device = torch.device(asked)
    assert str(torch.ones(1, device=device).device) == used
    assert str(torch.ones(1).to(device=device).device) == used
    assert type(device) is torch.device
    assert isinstance(device, torch.device)


def test_a_redirected_tensor_is_on_the_device_that_was_made(used: str) -> None:
    device = torch.device("cuda")
    assert torch.zeros(1, device=device).device == device == torch.zeros(1).cuda().device


def test_meta_and_remote_stay(used: str) -> None:
    assert torch.zeros(2, device="meta").device.type == "meta"
    assert torch.zeros(2).to("meta").device.type == "meta"
    assert torch.device("xpu:1") == torch.device("xpu", 1)
    assert torch.ones(1, device="remote").device.type == "remote"


def test_the_toggle_yields_cpu_then_the_accelerator(remote: str) -> None:
    assert str(torch.tensor([1], device="cpu:-1").device) == "cpu"
    assert TorchDevice.cpu_override
    for asked in (None, "cpu", "cuda", "mps", "remote"):
        assert str(torch.zeros(1, device=asked).device) == "cpu"
    assert str(torch.device("cpu", -1)) == remote
    assert not TorchDevice.cpu_override
    assert str(torch.zeros(1).device) == remote
    assert str(torch.zeros(1).to("cpu:-1").device) == "cpu"
    assert str(torch.device("cpu:-1")) == remote


def test_the_toggle_inside_a_scope_yields_the_cpu(remote: str) -> None:
    with TorchDevice.cpu_override():
        assert str(torch.device("cpu:-1")) == "cpu"
        assert str(torch.device("cpu:-1")) == "cpu"
        assert str(torch.zeros(1, device="cpu:-1").device) == "cpu"
    assert TorchDevice.cpu_override
    assert str(torch.device("cpu:-1")) == remote
    assert not TorchDevice.cpu_override


def test_a_call_that_is_tried_again_toggles_once(used: str) -> None:
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(2**50, device="cpu:-1")
    assert TorchDevice.cpu_override
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(2**50, device="cpu:-1")
    assert not TorchDevice.cpu_override


def outcome(*arguments: Any) -> str:
    try:
        return repr(torch.device(*arguments))
    except (RuntimeError, TypeError, ValueError) as error:
        return type(error).__name__


INDICES: list[Any] = [2**32 - 1, 2**32, 10**30, -(10**30), 300, 128, -5, True]
NAMES = ["cuda:01", "cuda: 1", "cuda:", "cuda:-1", "cpu:01"]


@pytest.mark.parametrize("target", ["cpu", "remote"])
def test_an_index_that_cannot_be_one_is_torchs_to_judge(target: str) -> None:
    calls = [(kind, index) for kind in ("cpu", "cuda") for index in INDICES]
    calls += [(name,) for name in NAMES]  # type: ignore[misc]
    stock = {call: outcome(*call) for call in calls}
    with redirected(target):
        assert {call: outcome(*call) for call in calls} == stock
        assert not TorchDevice.cpu_override


def test_enabling_twice_is_the_same_as_once(remote: str) -> None:
    def make() -> torch.Tensor:
        return torch.zeros(1, device="cuda")

    make()
    line = make.__code__.co_firstlineno + 1
    torch.device("cpu:-1")
    TorchDevice.enable("full")
    assert TorchDevice.cpu_override
    assert str(torch.device("cpu:-1")) == remote
    make()
    here = [each for each in TorchDevice.sites() if (each.file, each.line) == (__file__, line)]
    assert [each.count for each in here] == [2]


def test_the_toggle_moves_a_module(remote: str) -> None:
    module = torch.nn.Linear(1, 1).to("cpu:-1")
    assert str(module.weight.device) == "cpu"
    assert str(module.to("cpu:-1").weight.device) == remote


def test_a_scope_ends_with_its_block(remote: str) -> None:
    with pytest.raises(ZeroDivisionError), TorchDevice.cpu_override():
        assert str(torch.zeros(1, device="cuda").device) == "cpu"
        with TorchDevice.cpu_override():
            pass
        assert str(torch.zeros(1).device) == "cpu"
        raise ZeroDivisionError
    assert str(torch.zeros(1).device) == remote


def test_the_foreign_policy_leaves_cpu_and_no_device() -> None:
    with redirected("remote", "foreign") as device:
        assert str(torch.zeros(1, device="cuda").device) == device
        assert str(torch.zeros(1, device="mps").device) == device
        assert str(torch.zeros(1).device) == "cpu"
        assert str(torch.zeros(1, device="cpu").device) == "cpu"
        assert str(torch.zeros(1, device="cuda").cpu().device) == "cpu"
        assert TorchDevice.policy() == "foreign"


def test_an_index_that_does_not_exist_is_the_first_device(remote: str) -> None:
    assert str(torch.zeros(1, device="cuda:7").device) == "remote:0"
    assert str(torch.device("cuda", 7)) == "remote:0"


def test_an_index_of_a_machine_connected_later_is_kept() -> None:
    code = """
import TorchDevice, torch, torch_remote
torch.zeros(1, device="cuda")
machine = torch_remote.connect("local")
print(torch.device("cuda:1"), torch.zeros(1, device="cuda:1").device)
torch.cuda.set_device(1)
print(torch.zeros(1, device="cuda").device, torch.cuda.current_device())
"""
    assert assert_runs(code, **QUIET).splitlines() == ["remote:1 remote:1", "remote:1 1"]


def in_threads(count: int, work: Callable[[int], Any]) -> list[Any]:
    """What the work returns in threads that begin at the same time."""
    together = threading.Barrier(count)

    def run(number: int) -> Any:
        together.wait(DEADLINE)
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def test_threads_see_one_policy_and_one_override(remote: str) -> None:
    def look(number: int) -> set[str]:
        return {str(torch.zeros(1, device="cuda").device) for _ in range(20)}

    assert in_threads(4, look) == [{remote}] * 4
    torch.device("cpu:-1")
    assert in_threads(4, look) == [{"cpu"}] * 4


def test_threads_may_call_while_the_redirect_is_turned_off_and_on(remote: str) -> None:
    done = threading.Event()

    def work(number: int) -> set[str]:
        if number > 0:
            return {str(torch.zeros(1, device="meta").device)} | call_until(done)
        try:
            for _ in range(3):
                TorchDevice.disable()
                TorchDevice.enable("full")
        finally:
            done.set()
        return set()

    def call_until(event: threading.Event) -> set[str]:
        found = set()
        while not event.is_set():
            found.add(str(torch.zeros(1).device))
            found.add(str(torch.ones(1, dtype=torch.float64).to(torch.float32).cpu().device))
        return found

    found = set().union(*in_threads(3, work))
    assert found <= {remote, "cpu", "meta"}
    assert str(torch.zeros(1, device="cuda").device) == remote


def test_disable_restores_every_object() -> None:
    code = """
import torch, torch_remote
import torch._dynamo, torch._inductor.compile_fx, torch.cuda.jiterator, torch.nested._internal.ops
import torch.utils.cpp_extension
from torch_state import differences, snapshot
import os
os.environ["TORCHDEVICE_POLICY"] = "off"
import TorchDevice
hashes = lambda: [hash(f) for f in (torch.zeros, torch._C._nn._parse_to, torch.empty_like)]
before, old = snapshot(), hashes()
for order in ("cpu", "remote"):
    os.environ["TORCHDEVICE_ORDER"] = order
    TorchDevice.enable("full")
    TorchDevice.enable("full")
    changed = differences(before, snapshot())
    x = torch.zeros(2, device="cuda")
    TorchDevice.disable()
    print(len(changed) > 50, differences(before, snapshot()), hashes() == old)
for ask in (lambda: torch.zeros(1, device="cuda"), lambda: torch.device("cpu:-1")):
    try: print(ask())
    except (AssertionError, RuntimeError) as error: print(type(error).__name__)
print(torch.device("cuda"), torch.zeros(1).device, torch.cuda.is_available())
"""
    here = str(Path(__file__).parent)
    assert assert_runs(code, PYTHONPATH=here, **QUIET).splitlines() == [
        "True set() True",
        "True set() True",
        "AssertionError",
        "RuntimeError",
        "cuda cpu False",
    ]


def test_no_name_of_torch_itself_is_replaced() -> None:
    names = ("device", "zeros", "tensor", "Generator", "Stream", "Event", "load", "compile")
    before = {name: getattr(torch, name) for name in names}
    methods = {name: getattr(torch.Tensor, name) for name in ("to", "cuda", "cpu", "numpy")}
    with redirected("remote"):
        assert all(getattr(torch, name) is before[name] for name in names)
        assert all(getattr(torch.Tensor, name) is methods[name] for name in methods)
        assert torch._C._len_torch_function_stack() == 0


def test_read_as_cuda_is_what_programs_read() -> None:
    with redirected("remote", read_as="cuda"):
        x = torch.ones(2, device="cuda")
        assert x.device.type == "cuda"
        assert x.device == torch.device("cuda:0") == torch.device("cuda", 0)
        assert x.is_cuda
        y = torch.zeros(2, device=x.device) + x.to(x.device)
        module = torch.nn.Linear(2, 2).to(torch.device("cuda"))
        assert module(y).device.type == "cuda"
        assert str(next(module.parameters()).device) == "cuda:0"
    assert x.device.type == "remote"


def test_the_class_and_helpers_tell_the_device(used: str) -> None:
    from TorchDevice.core.tensors import tensor_to_replacement

    from TorchDevice import TorchDevice as Device
    from TorchDevice.core.device import DeviceManager
    from TorchDevice.utils import device_utils

    assert str(Device()) == str(Device().device) == str(Device.get_default_device()) == used
    assert str(Device("cuda")) == used
    assert str(Device._default_device) == used
    assert Device.cpu_override is TorchDevice.cpu_override
    assert not Device._cpu_override
    Device.apply_patches()
    Device.ensure_patched()
    assert str(DeviceManager.torch_device_replacement("cuda", 0)) == used
    assert str(tensor_to_replacement(torch.ones(1), "cuda").device) == used
    assert device_utils.get_current_device_type() == used.split(":")[0]
    assert device_utils.is_cuda_effectively_available() == (used != "cpu")
    with TorchDevice.cpu_override():
        assert Device._cpu_override
        assert device_utils.is_cpu_override_active()
        assert str(Device()) == "cpu"
    assert device_utils.same_device("meta", "meta")


def test_a_module_that_asks_for_each_tensor_toggles_the_override_once(remote: str) -> None:
    layer = torch.nn.Linear(2, 2, device="cpu:-1")
    assert {each.device.type for each in layer.parameters()} == {"cpu"}
    assert torch.zeros(1, device="cuda").device.type == "cpu"  # the override is on
    other = torch.nn.Linear(2, 2, device="cpu:-1")
    assert {str(each.device) for each in other.parameters()} == {remote}
    assert str(torch.zeros(1, device="cuda").device) == remote
