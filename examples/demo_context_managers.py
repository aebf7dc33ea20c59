"""Context managers that name devices."""

import torch

import TorchDevice

with torch.device("cuda"):
    a = torch.zeros(2)
with torch.device("meta"):
    b = torch.zeros(2)
with torch.cuda.device(0), torch.autocast("cuda", dtype=torch.bfloat16):
    c = torch.ones(2, 2, device="cuda") @ torch.ones(2, 2, device="cuda")
with torch.inference_mode(), TorchDevice.cpu_override():
    d = torch.zeros(2)
print(a.device, b.device, c.dtype, d.device)
assert a.device == TorchDevice.TorchDevice().device
assert b.device.type == "meta"
assert c.dtype == torch.bfloat16
assert d.device.type == "cpu"
