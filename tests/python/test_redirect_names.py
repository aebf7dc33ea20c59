"""One accelerator name: a program is told of CUDA, or of MPS where it was written for that."""

from __future__ import annotations

import copy

import pytest
import torch
from helpers import assert_runs, run_python
from redirecting import QUIET, TorchDevice, redirected


def choose_as_programs_do() -> str:
    """The order that programs of Apple's users have."""
    if torch.backends.mps.is_available():
        return "mps"
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("policy", ["full", "foreign"])
@pytest.mark.parametrize("read_as", [None, "cuda"])
def test_a_program_that_asks_for_mps_first_takes_cuda(policy: str, read_as: str | None) -> None:
    with redirected("remote", policy, **({"read_as": read_as} if read_as else {})):
        assert choose_as_programs_do() == "cuda"
        assert not torch.backends.mps.is_built()
        assert not torch.mps.is_available()
        assert torch.mps.device_count() == 0
        assert torch.backends.cuda.is_built()
        x = torch.ones(2, device="mps")  # a name in the text is redirected all the same
        assert (x.is_cuda, x.is_mps) == (True, False)


@pytest.mark.parametrize("policy", ["full", "foreign"])
@pytest.mark.parametrize("name", ["cuda", "mps"])
def test_generators_streams_and_events_read_as_tensors_do(policy: str, name: str) -> None:
    with redirected("remote", policy, read_as=name):
        x = torch.ones(2, device=name)
        generator, stream = torch.Generator(name), torch.cuda.current_stream()
        event = torch.cuda.Event()
        for each in (generator, stream, torch.cuda.Stream(), torch.cuda.default_generators[0]):
            assert str(each.device) == f"{name}:0"
            assert each.device == x.device == torch.device(name)
        assert event.device.type == name
        assert torch.Generator().device.type == "cpu"
        drawn = torch.rand(2, generator=generator, device=generator.device)
        assert str(drawn.device) == f"{name}:0"
        assert drawn.untyped_storage().device == drawn.storage().device == x.device
        assert torch.Generator(generator.device).device == generator.device
        assert torch.cuda.Stream(device=stream.device).device == stream.device
        assert copy.deepcopy(generator).device == generator.device
        with torch.cuda.stream(stream):
            assert (x + 1).tolist() == [2.0, 2.0]
    assert generator.device.type == stream.device.type == event.device.type == "remote"
    assert {drawn.untyped_storage().device, drawn.storage().device} == {torch.device("remote:0")}


@pytest.mark.parametrize("policy", ["full", "foreign"])
def test_read_as_mps_is_for_programs_written_for_apple(policy: str) -> None:
    with redirected("remote", policy, read_as="mps"):
        assert choose_as_programs_do() == "mps"
        assert torch.backends.mps.is_built()
        assert torch.mps.is_available()
        assert torch.mps.device_count() == 1
        assert (torch.cuda.is_available(), torch.cuda.device_count()) == (False, 0)
        assert not torch.backends.cuda.is_built()
        x = torch.ones(2, device="mps")
        assert x.device == torch.device("mps:0") == torch.device("mps", 0)
        assert str(x.to("mps").device) == str(torch.device("mps")) == "mps:0"
        assert (x.is_mps, x.is_cuda, x.type()) == (True, False, "torch.mps.FloatTensor")
        assert not isinstance(x, torch.cuda.FloatTensor)
        assert x.type(x.half().type()).dtype == torch.float16
        y = torch.zeros(2, device=x.device) + x.to(x.device)
        module = torch.nn.Linear(2, 2).to(torch.device("mps"))
        with torch.autocast("mps", dtype=torch.float16):
            assert module(y).dtype == torch.float16
        torch.mps.synchronize()
        assert torch.mps.current_allocated_memory() > 0
        state = torch.mps.get_rng_state()
        drawn = torch.rand(2, device="mps")
        torch.mps.set_rng_state(state)
        assert torch.equal(torch.rand(2, device="mps"), drawn)
        assert torch.Generator("mps").device == x.device
        TorchDevice.enable(policy, read_as="cuda")
        assert choose_as_programs_do() == "cuda"
        assert str(x.device) == "cuda:0"
    assert (x.device.type, x.is_mps, x.is_cuda) == ("remote", False, False)


@pytest.mark.parametrize("read_as", ["cuda", "mps"])
def test_the_accelerator_has_the_name_that_its_tensors_have(read_as: str) -> None:
    with redirected("remote", "foreign", read_as=read_as):
        accelerator = torch.accelerator.current_accelerator()
        assert accelerator is not None
        x = torch.ones(2, device=accelerator)
        assert (accelerator.type, str(accelerator)) == (x.device.type, read_as)
        assert torch.ones(2).to(f"{accelerator}:0").device == x.device
        assert torch.nn.Linear(2, 2).to(accelerator)(x).device == x.device
        torch.accelerator.synchronize(x.device)
        torch.accelerator.set_device_index(x.device)
        assert torch.compile(lambda x: x + 1, backend="eager")(x).device == x.device
        assert torch.accelerator.is_available() and torch.accelerator.device_count() == 1
        TorchDevice.enable("foreign")
    with redirected("remote", "foreign"):
        assert torch.accelerator.current_accelerator() == torch.device("remote")


@pytest.mark.parametrize("read_as", ["cuda", "mps"])
def test_on_the_cpu_nothing_is_called_otherwise(read_as: str) -> None:
    with redirected("cpu", read_as=read_as):
        x = torch.ones(2, device=read_as)
        assert (str(x.device), x.is_cuda, x.is_mps, x.type()) == (
            "cpu",
            False,
            False,
            "torch.FloatTensor",
        )
        assert choose_as_programs_do() == "cpu"


@pytest.mark.parametrize("policy", ["full", "foreign"])
def test_a_printed_tensor_has_the_name_that_programs_are_told(policy: str) -> None:
    with redirected("remote", policy, read_as="cuda"):
        x = torch.ones(2, device="cuda", dtype=torch.int64)
        assert str(x) == repr(x) == f"{x}" == "tensor([1, 1], device='cuda:0')"
        assert "device='cuda:0'" in str(torch.nn.Linear(1, 1).cuda().weight)
        assert "device='cuda:0'" in str(x.to_sparse())
        TorchDevice.enable(policy, read_as="mps")
        assert str(x) == "tensor([1, 1], device='mps:0')"
        with TorchDevice.cpu_override():
            assert str(torch.ones(1)) == "tensor([1.])"
        TorchDevice.disable()
        TorchDevice.enable(policy)
        assert str(x) == "tensor([1, 1], device='remote:0')"
    assert str(x) == "tensor([1, 1], device='remote:0')"


def test_the_variable_and_the_command_set_the_name() -> None:
    code = """
import torch, torch_remote, TorchDevice
x = torch.ones(1, device="cuda")
print(x.device, torch.cuda.is_available(), torch.backends.mps.is_available())
TorchDevice.enable(read_as="cuda")
print(x.device)
"""
    found = assert_runs(code, TORCHDEVICE_READ_AS="MPS", **QUIET).splitlines()
    assert found == ["mps:0 False True", "cuda:0"]
    done = run_python("import TorchDevice", TORCHDEVICE_READ_AS="xpu")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ValueError: TORCHDEVICE_READ_AS is xpu; it may be cuda or mps"
    )
