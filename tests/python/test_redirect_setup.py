"""Turning the redirect on: imports, configuration, variables, arguments."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import assert_runs, run_python
from redirecting import QUIET

import TorchDevice


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
    "name",
    ["TORCHDEVICE_POLICY", "TORCHDEVICE_ORDER", "TORCHDEVICE_LOG_LEVEL", "TORCHDEVICE_READ_AS"],
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
