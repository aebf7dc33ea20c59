"""Streams and events of CUDA code: the device's own, with its order and its times."""

import torch

import TorchDevice

side = torch.cuda.Stream()
done = torch.cuda.Event()
x = torch.ones(64, 64, device="cuda")
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    y = x @ x
    done.record(side)
torch.cuda.current_stream().wait_event(done)
z = y + 1
torch.cuda.synchronize()
print("sum", z.sum().item(), "on", z.device)
assert done.query()
assert z[0, 0].item() == 65
assert TorchDevice.is_enabled()
