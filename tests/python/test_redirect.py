"""TorchDevice: what a device request becomes, on the CPU and on the embedded remote device."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import DEADLINE, assert_runs, run_python
from redirecting import redirected

import TorchDevice

QUIET = {"TORCHDEVICE_LOG_LEVEL": "ERROR"}
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
    counts = [each.count for each in TorchDevice.sites() if each.line == line]
    assert counts == [2]


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


@pytest.mark.parametrize("first", ["TorchDevice", "torch", "torch_remote"])
def test_the_order_of_imports_does_not_matter(first: str) -> None:
    code = f"""
import {first}
import torch, TorchDevice, torch_remote
print(torch.zeros(1).device, torch.zeros(1, device="cuda").device, torch.cuda.is_available())
with torch.device("meta"):
    print(torch.zeros(1).device)
"""
    expected = ["remote:0 remote:0 True", "meta"]
    assert assert_runs(code, **QUIET).splitlines() == expected


def test_without_an_accelerator_everything_is_the_cpu() -> None:
    code = """
import TorchDevice, torch, sys
x = torch.ones(2, device="cuda") + torch.ones(2, device="mps") + torch.ones(2).cuda()
print(x.device, torch.cuda.is_available(), torch.cuda.device_count(), torch.cuda.current_device())
print("torch_remote" in sys.modules)
"""
    assert assert_runs(code, **QUIET).splitlines() == ["cpu False 0 0", "False"]


def test_a_configured_machine_is_used_without_importing_torch_remote() -> None:
    code = """
import TorchDevice, torch
print(torch.ones(2, device="cuda").device, torch.cuda.is_available())
"""
    assert assert_runs(code, TORCH_REMOTE="local", **QUIET) == "remote:0 True"


def test_a_configuration_that_names_no_machine_is_none(tmp_path: Path) -> None:
    file = tmp_path / "torch-remote" / "config.toml"
    file.parent.mkdir()
    code = "import TorchDevice, torch, sys; print(TorchDevice._C.accelerator(), len(sys.argv))"
    for text, expected in (
        ('[machines.box]\nurl = "ssh://nowhere"\n', "cpu 1"),
        ('url = "local"\n', "remote 1"),
    ):
        file.write_text(text)
        assert assert_runs(code, XDG_CONFIG_HOME=str(tmp_path), **QUIET) == expected


VARIABLES = [
    ({"TORCHDEVICE_POLICY": "off"}, "off"),
    ({"TORCHDEVICE_POLICY": "foreign"}, "foreign"),
    ({"TORCHDEVICE_POLICY": "off", "TORCH_ALLOW_REDIRECTS": "TRUE"}, "full"),
    ({"TORCH_ALLOW_REDIRECTS": "no"}, "full"),
    ({}, "full"),
]


@pytest.mark.parametrize(("variables", "policy"), VARIABLES, ids=str)
def test_variables_choose_the_policy(variables: dict[str, str], policy: str) -> None:
    assert assert_runs("import TorchDevice; print(TorchDevice.policy())", **variables) == policy


@pytest.mark.parametrize(
    "name", ["TORCHDEVICE_POLICY", "TORCHDEVICE_ORDER", "TORCHDEVICE_LOG_LEVEL"]
)
def test_a_wrong_value_of_a_variable_is_refused_with_its_name(name: str) -> None:
    done = run_python("import TorchDevice", **{name: "nonsense"})
    assert done.returncode == 1
    assert f"ValueError: {name}" in done.stderr
    assert "may" in done.stderr.splitlines()[-1]


def test_wrong_arguments_of_enable_are_refused() -> None:
    for arguments in ({"policy": "all"}, {"policy": "full", "read_as": "xpu"}):
        with pytest.raises(ValueError, match="may be"):
            TorchDevice.enable(**arguments)
    assert not TorchDevice.is_enabled()


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


def test_the_log_says_once_where_and_what() -> None:
    code = """
import TorchDevice, torch
def make(n):
    return torch.zeros(n, device="cuda")
for n in range(3):
    make(n)
torch.nn.Linear(1, 1, device="cuda")
TorchDevice.report()
"""
    done = run_python(code, TORCHDEVICE_LOG_LEVEL="INFO")
    assert done.returncode == 0
    lines = done.stderr.splitlines()
    assert sum("make(): torch.zeros: cuda -> cpu" in line for line in lines) == 1
    assert lines[0].startswith("TorchDevice: <string>:4 make(): ")
    assert any("<string>:7 <module>(): torch.empty: cuda -> cpu" in line for line in lines)
    assert any(
        line.split() == ["<string>:4", "torch.zeros", "cuda", "cpu", "3"]
        for line in done.stdout.splitlines()
    )


def test_debug_logs_every_call_and_warning_none_but_overrides() -> None:
    code = """
import TorchDevice, torch
for n in range(3):
    torch.zeros(n, device="cuda")
with TorchDevice.cpu_override():
    torch.zeros(1, device="cuda")
"""
    debug = run_python(code, TORCHDEVICE_LOG_LEVEL="DEBUG").stderr
    assert debug.count("torch.zeros: cuda -> cpu") == 4
    warning = run_python(code, TORCHDEVICE_LOG_LEVEL="warning").stderr
    assert warning.count("torch.zeros: cuda -> cpu (the CPU override is on)") == 1
    assert len(warning.splitlines()) == 1


@contextmanager
def debug_handler(emit: Callable[[logging.LogRecord], None]) -> Iterator[None]:
    handler = logging.Handler()
    handler.emit = emit  # type: ignore[method-assign]
    logger = logging.getLogger("TorchDevice")
    others, logger.handlers = logger.handlers, [handler]
    logger.setLevel("DEBUG")
    try:
        yield
    finally:
        logger.handlers = others
        logger.setLevel("ERROR")


def test_a_handler_of_the_log_may_call_torch(remote: str) -> None:
    records: list[logging.LogRecord] = []

    def emit(record: logging.LogRecord) -> None:
        records.append(record)
        assert str(torch.zeros(2, device="cuda").device) == remote

    with debug_handler(emit):
        for _ in range(2):
            torch.ones(3, device="cuda")
    assert len(records) == 2


def test_calls_of_the_logs_handlers_do_not_change_the_answer(remote: str) -> None:
    # Enough lines to fill the table of recent calls.
    source = "def fill():\n" + "    torch.device('mps')\n" * 1500
    scope: dict[str, Any] = {"torch": torch, "__name__": "mine"}
    exec(source, scope)

    def ask() -> str:
        return str(torch.device("cuda"))

    def emit(record: logging.LogRecord) -> None:
        with TorchDevice.cpu_override():
            scope["fill"]()

    ask()
    with debug_handler(emit):
        assert [ask() for _ in range(3)] == [remote] * 3


def test_a_type_made_at_run_time_does_not_name_a_site(used: str) -> None:
    for number in range(3):
        made = type(f"Stream{number}", (torch.Stream,), {})
        made(device="cuda")
    assert {each.api for each in TorchDevice.sites() if "Stream" in each.api} == {"torch.Stream"}


def test_the_report_is_json_for_tools(remote: str) -> None:
    import json

    torch.zeros(3, device="cuda")
    rows = json.loads(TorchDevice.sites().json())
    mine = [row for row in rows if row["file"] == __file__ and row["api"] == "torch.zeros"]
    assert mine[-1]["asked"] in ("cuda", "cuda:7", "no device", "mps", "mps:0", "cpu")
    assert {"line", "function", "used", "reason", "count"} <= mine[0].keys()


@pytest.mark.parametrize("first", ["logging", "TorchDevice"])
def test_a_users_logging_setup_applies(first: str) -> None:
    setup = 'import logging, sys; logging.basicConfig(stream=sys.stdout, format="mine %(message)s")'
    lines = [setup, "import TorchDevice, torch"]
    code = lines if first == "logging" else lines[::-1]
    use = """
torch.zeros(1, device="cuda")
logging.getLogger("TorchDevice").setLevel("DEBUG")
for _ in range(2): torch.ones(1, device="cuda")
logging.getLogger("TorchDevice").setLevel("ERROR")
torch.ones(2, device="cuda")
"""
    printed = assert_runs("\n".join(code) + use, TORCHDEVICE_LOG_LEVEL="INFO").splitlines()
    assert printed[0].startswith("mine <string>:3 <module>(): torch.zeros: cuda -> cpu")
    assert [line.split()[3] for line in printed] == ["torch.zeros:", "torch.ones:", "torch.ones:"]


def test_the_class_and_helpers_tell_the_device(used: str) -> None:
    from TorchDevice import TorchDevice as Device
    from TorchDevice.core.device import DeviceManager
    from TorchDevice.core.tensors import tensor_to_replacement
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


def test_every_sub_module_can_be_imported() -> None:
    import importlib

    for name in [
        "core.device",
        "core.patch",
        "core.logger",
        "core.tensors",
        "core.modules",
        "core.hardware_info",
        "ops.memory.management",
        "ops.memory.stats",
        "ops.nn",
        "ops.streams.cuda",
        "ops.streams.mps",
        "ops.streams.sync",
        "ops.events.cuda",
        "ops.events.mps",
        "ops.events.sync",
        "ops.autograd.function",
        "ops.autograd.variable",
        "ops.autograd.grad_mode",
        "utils.compile",
        "utils.device_utils",
        "utils.error_handling",
        "utils.profiling",
        "utils.type_utils",
    ]:
        module = importlib.import_module(f"TorchDevice.{name}")
        for each in getattr(module, "__all__", ()):
            assert getattr(module, each, None) is not None, (name, each)
    assert TorchDevice.TDLogger is importlib.import_module("TorchDevice.core.logger")
    assert TorchDevice.__version__
    assert os.environ.get("TORCHDEVICE_LOG_LEVEL") == "ERROR"


def test_a_site_is_the_users_line_also_where_torch_remote_replaces_a_function(remote: str) -> None:
    model = torch.nn.Linear(2, 2)
    model.to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 2, device="cuda")).sum().backward()
    optimizer.step()
    with torch.random.fork_rng(device_type="cuda"):
        pass
    assert any(each[:1] == (__file__,) and each.api == "Module.to" for each in TorchDevice.sites())
    ours = str(Path(TorchDevice.__file__).parent.parent)
    assert not [each for each in TorchDevice.sites() if each.file.startswith(ours)]
    assert not [each for each in TorchDevice.sites() if "contextlib" in each.file]


def test_a_module_that_asks_for_each_tensor_toggles_the_override_once(remote: str) -> None:
    layer = torch.nn.Linear(2, 2, device="cpu:-1")
    assert {each.device.type for each in layer.parameters()} == {"cpu"}
    assert torch.zeros(1, device="cuda").device.type == "cpu"  # the override is on
    other = torch.nn.Linear(2, 2, device="cpu:-1")
    assert {str(each.device) for each in other.parameters()} == {remote}
    assert str(torch.zeros(1, device="cuda").device) == remote
