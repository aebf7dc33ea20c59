"""torch_modal: its names, its two devices, the switch, and a process that has torch_remote too."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import assert_runs, is_alive, run_python, serving, wait_until

pytestmark = pytest.mark.slow


def run(code: str, **environment: str) -> list[str]:
    return assert_runs(f"import torch, torch_modal\n{code}", **environment).splitlines()


def test_the_import_starts_nothing_and_there_are_two_devices() -> None:
    code = """
import torch_remote
print(torch.modal.is_available(), torch.modal.device_count(), torch_modal.modal.device_count())
print(torch_modal.modal.get_device_name(1), torch_remote.machines())
print(torch.ones(1, device="modal:1").device, torch.modal.device_count())
"""
    assert run(code) == ["True 2 2", "Modal Device []", "modal:1 2"]


def test_methods_of_tensors_modules_and_storages_move_to_the_device() -> None:
    code = """
x = torch.arange(4.0)
moved = [x.modal(), x.modal(1), x.modal("modal:1"), x.modal(torch.device("modal", 1))]
print([str(each.device) for each in moved], x.is_modal, moved[0].is_modal)
print(torch.nn.Linear(2, 2).modal(1).weight.device, x.untyped_storage().modal().device)
print(x.modal(None, torch.int32, True, True).dtype, moved[1].modal().device)
"""
    assert run(code) == [
        "['modal:0', 'modal:1', 'modal:1', 'modal:1'] False True",
        "modal:1 modal:0",
        "torch.int32 modal:0",
    ]


def test_the_device_module_has_what_torch_remote_has_and_the_switch() -> None:
    code = """
from torch_remote import _device
print([name for name in _device.__all__ if not hasattr(torch.modal, name)])
import torch.modal.random
torch.modal.disable_remote_execution()
print(torch_modal.is_remote_execution_enabled(), torch.modal.is_remote_execution_enabled())
torch.modal.enable_remote_execution()
print(torch_modal.is_remote_execution_enabled())
print([n for n in torch_modal.modal.__all__ if not hasattr(torch_modal.modal, n)])
print(isinstance(torch.zeros(1, device="modal"), torch_modal.modal.FloatTensor))
"""
    assert run(code) == ["[]", "False False", "True", "[]", "True"]


def test_the_two_devices_have_generators_of_their_own() -> None:
    code = """
torch.manual_seed(3)
a, b = (torch.randn(3, device=f"modal:{index}").tolist() for index in (0, 1))
torch.modal.manual_seed(3)
print(a == b, torch.randn(3, device="modal:0").tolist() == a)
"""
    assert run(code) == ["True True"]


def test_on_the_embedded_server_the_switch_keeps_tensors_and_values() -> None:
    code = """
x = torch.randn(4, 4).modal()
view = x[1]
before = x.tolist()
for switch in (torch_modal.disable_remote_execution, torch_modal.enable_remote_execution) * 2:
    switch()
    view.add_(0)
    print(x.tolist() == before)
"""
    assert run(code) == ["True"] * 4


def test_enabled_calls_run_on_the_configured_machine_and_disabled_on_the_embedded_server(
    tmp_path: Path,
) -> None:
    code = """
import torch_remote
where = lambda: (torch.ones(1).modal().item(), torch_remote.machines()[0].status()["url"])
print(where()[1])
torch_modal.disable_remote_execution()
print(where()[1], torch_modal.modal.get_device_name())
torch_modal.enable_remote_execution()
print(where()[1], torch_modal.modal.get_device_name() != "Modal Device")
"""
    with serving(f"unix://{tmp_path}/s", "--devices", "2") as url:
        done = run_python(f"import torch, torch_modal\n{code}", TORCH_REMOTE=url)
    assert done.stdout.splitlines() == [url, "local Modal Device", f"{url} True"], done.stderr


SWITCHES = """
import gc, torch_remote
url = lambda: torch_remote.machines()[0].status()["url"].split(":")[0]
torch.manual_seed(1)
from torch.nn import Dropout, Linear, Sequential
model = Sequential(Linear(4, 8), Dropout(), Linear(8, 1)).modal()
optimizer = torch.optim.Adam(model.parameters())
inputs = torch.randn(16, 4).modal()
base = torch.arange(6.0).modal()
view, other = base[2:4], torch.ones(2, device="modal:1").to(torch.float64)
weights = list(model.parameters())

def step():
    optimizer.zero_grad()
    model(inputs).square().sum().backward()
    optimizer.step()
    return torch.cat([p.detach().flatten() for p in weights]).tolist()
"""


@pytest.mark.parametrize("devices", ["1", "2"])
def test_live_tensors_and_generators_move_at_the_switch(tmp_path: Path, devices: str) -> None:
    code = """
mine = [torch.Generator(f"modal:{i}").manual_seed(5 + i) for i in (0, 1)]
for switch in (None, torch_modal.disable_remote_execution, torch_modal.enable_remote_execution):
    if SWITCH and switch:
        switch()
    print(step(), torch.randn(2, device="modal").tolist(), url())
    view.add_(1)
    print(base.tolist(), other.tolist(), other.device, view._base is base)
    print([torch.rand(2, device=g.device, generator=g).tolist() for g in mine],
          [p.grad.sum().item() for p in weights])
"""
    with serving(f"unix://{tmp_path}/s", "--devices", devices) as url:
        both = []
        for does_switch in ("True", "False"):
            lines = run(SWITCHES + code.replace("SWITCH", does_switch), TORCH_REMOTE=url)
            both.append(lines)
    switched, plain = both
    urls = [line.rpartition(" ")[2] for line in switched[::3]]
    assert urls == ["unix", "local", "unix"]
    assert [line.replace("local", "unix") for line in switched] == plain


def test_a_machine_with_one_device_is_two_devices_too(tmp_path: Path) -> None:
    code = """
print(torch.modal.device_count())
x, y = torch.ones(2, device="modal:0"), torch.ones(2, device="modal:1")
try:
    x + y
except RuntimeError as error:
    print("modal:0 and modal:1" in str(error))
print((x + y.to("modal:0")).tolist(), y.modal(1).device, torch.modal.device_count())
"""
    with serving(f"unix://{tmp_path}/s") as url:
        assert run(code, TORCH_REMOTE=url) == ["2", "True", "[2.0, 2.0] modal:1 2"]
        code = "print(torch.ones(2, device='modal:1').sum().item())"
        assert run(code, TORCH_REMOTE=url) == ["2.0"]


def test_what_cannot_move_stays_and_is_told(tmp_path: Path) -> None:
    code = """
x = torch.ones(3, device="modal", requires_grad=True)
y = (x * 2).exp().exp()
try:
    torch_modal.disable_remote_execution()
except RuntimeError as error:
    print(error)
print(torch_modal.is_remote_execution_enabled())
y.sum().backward()
print(x.grad.shape)
del y
torch_modal.disable_remote_execution()
print(x.tolist())
"""
    with serving(f"unix://{tmp_path}/s", "--devices", "2") as url:
        lines = run(code, TORCH_REMOTE=url)
    assert "cannot move tensors that only PyTorch holds" in lines[0]
    assert lines[1:] == ["True", "torch.Size([3])", "[1.0, 1.0, 1.0]"]


def test_a_machine_that_cannot_be_reached_keeps_the_tensors_where_they_are(tmp_path: Path) -> None:
    code = """
torch_modal.disable_remote_execution()
x = torch.ones(3, device="modal")
try:
    torch_modal.enable_remote_execution()
except ConnectionError as error:
    print("nobody" in str(error))
print(x.tolist(), torch_modal.is_remote_execution_enabled())
"""
    assert run(code, TORCH_REMOTE=f"unix://{tmp_path}/nobody") == [
        "True",
        "[1.0, 1.0, 1.0] False",
    ]


def test_a_configured_modal_is_one_warning_and_the_embedded_server(tmp_path: Path) -> None:
    (tmp_path / "modal.py").write_text("")
    code = "import torch, torch_modal; print((torch.ones(2).modal() + torch.ones(2).modal()).sum())"
    environment = {"PYTHONPATH": str(tmp_path), "MODAL_TOKEN_ID": "ak-none"}
    done = run_python(code, **environment)
    assert done.returncode == 0 and "4." in done.stdout
    assert done.stderr.count("the embedded server, for Modal failed: modal://A100-40GB") == 1


def test_torch_modal_after_torch_remote_shares_its_devices() -> None:
    done = run_python("""
        import torch, torch_remote, torch_modal
        x = torch.ones(2).modal()
        print(x.device, x.is_modal, x.is_remote, torch.modal is torch.remote)
        print(torch.nn.Linear(1, 1).modal().weight.device, torch.modal.device_count())
        print(torch_modal.modal.device_count(), torch_modal._C.modal(x, 0) is x)
        try:
            torch.modal.set_device("modal:0")
        except ValueError as error:
            print(error)
    """)
    assert done.stdout.splitlines() == [
        "remote:0 True True True",
        "remote:0 1",
        "1 True",
        "'modal:0': this process calls these devices 'remote', since torch_remote was imported "
        "before torch_modal; write 'remote:0'",
    ], done.stderr
    assert "UserWarning: torch_remote was imported before torch_modal" in done.stderr


def test_disabled_before_the_first_use_nothing_connects_to_the_configured_machine(
    tmp_path: Path,
) -> None:
    code = """
        import torch, torch_remote, torch_modal
        torch_modal.disable_remote_execution()
        x = torch.ones(2, device="remote")
        print(x.sum().item(), [each.status()["url"] for each in torch_remote.machines()])
        torch_modal.enable_remote_execution()
        print(x.sum().item(), [each.status()["url"] for each in torch_remote.machines()])
    """
    with serving(f"unix://{tmp_path}/s") as url:
        done = run_python(code, TORCH_REMOTE=url)
    assert done.stdout.splitlines() == ["2.0 ['local']", f"2.0 [{url!r}]"], done.stderr


@pytest.mark.parametrize("autoload", ["0", "1"])
def test_torch_remote_after_torch_modal_shares_its_devices(autoload: str) -> None:
    code = """
        import torch_modal, torch, torch_remote
        device = torch_remote.create_modal_device("T4")  # behind the two of the embedded server
        print(device)
        print(torch.ones(2).remote().device, torch.ones(2).modal().is_remote)
        print(torch.remote.device_count())
    """
    said = assert_runs(code, TORCH_REMOTE_AUTOLOAD=autoload)
    assert said.splitlines() == ["modal:2", "modal:0 True", "3"]


def test_no_server_is_left_after_exit() -> None:
    code = """
import torch_remote
torch.ones(1).modal().item()
print(torch_remote.machines()[0].status()["pid"])
"""
    pid = int(run(code)[0])
    assert wait_until(lambda: not is_alive(pid))


def test_a_forked_child_is_told_the_name_of_the_device() -> None:
    code = """
import os
torch.ones(1).modal().item()
if os.fork() == 0:
    try:
        torch.ones(1, device="modal")
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
"""
    assert run(code)[0].startswith("Cannot re-initialize modal in forked subprocess. To use modal")


def test_all_changes_to_torch_can_be_taken_back_and_made_again() -> None:
    code = """
import torch_remote
torch_remote._patches.undo_all()
print(hasattr(torch.Tensor, "modal"), hasattr(torch.Tensor, "remote"))
torch_remote._change_torch()
print(torch.ones(1).modal(0, torch.float64).dtype, torch.ones(1).remote().device)
"""
    assert run(code) == ["False False", "torch.float64 modal:0"]


def test_the_private_packages_import_neither_client_nor_torch() -> None:
    said = assert_runs(
        """
        import sys
        import torch_remote_execution.modal_app as app, torch_modal_remote.app as modal_app
        clients = {"torch_remote", "torch_modal", "torch", "modal"}
        print(sorted(clients & set(sys.modules)), modal_app.APP_NAME, modal_app.GPU)
        print(len(app.GPU_SPECS), modal_app.GPU in app.GPU_SPECS)
        try:
            app.make_app()
        except ImportError as error:
            print(error)
    """,
        anew=True,
    )
    assert said.splitlines() == [
        "[] torch-modal-extension A100-40GB",
        "9 True",
        "Modal's SDK is missing: run `pip install modal`",
    ]
