"""Tensors of a program that says `cuda`, on the accelerator there is."""

import torch

import TorchDevice  # before or after torch

device = torch.device("cuda")
x = torch.tensor([1.0, 2.0, 3.0], device=device)
y = torch.ones(3, device="cuda") + x.cuda()
print("asked for cuda, used", y.device)
print("values", y.cpu().tolist())
assert y.tolist() == [2.0, 3.0, 4.0]
assert y.device == device == TorchDevice.TorchDevice().device
TorchDevice.report()
