"""A product of two matrices, timed with CUDA's events."""

import torch

import TorchDevice

size = 256
a = torch.eye(size, device="cuda") * 2
b = torch.ones(size, size, device="cuda")
start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
start.record()
c = a @ b
end.record()
torch.cuda.synchronize()
print(f"{size}x{size} on {c.device}: {start.elapsed_time(end):.3f} ms")
assert c.unique().tolist() == [2.0]
assert c.device == TorchDevice.TorchDevice().device
