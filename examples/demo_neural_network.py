"""A small network, trained by code for CUDA."""

import torch
from torch import nn

import TorchDevice

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1)).to("cuda")
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
inputs = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]], device="cuda")
wanted = torch.tensor([[0.0], [1.0], [1.0], [0.0]], device="cuda")
for _ in range(150):
    loss = nn.functional.mse_loss(model(inputs), wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.4f} on {inputs.device}")
assert loss.item() < 0.05
assert next(model.parameters()).device == TorchDevice.TorchDevice().device
