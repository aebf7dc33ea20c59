"""Three ways to a tensor that is really on the CPU."""

import torch

import TorchDevice

with TorchDevice.cpu_override():  # ends with the block
    assert torch.ones(1, device="cuda").device.type == "cpu"

x = torch.ones(1, device="cpu:-1")  # turns the override on
assert x.device.type == "cpu"
assert torch.ones(1, device="cpu").device.type == "cpu"
assert TorchDevice.cpu_override
torch.device("cpu:-1")  # and off
assert not TorchDevice.cpu_override

y = torch.ones(1, device="cpu")
print("with the override:", x.device, "- without:", y.device)
assert y.device == TorchDevice.TorchDevice().device
