"""Optimizers need no configuration under redirect."""

import torch
from torch import nn, optim

from TorchDevice import TorchDevice

device = TorchDevice()
for kind in (optim.SGD, optim.Adam, optim.AdamW, optim.RMSprop, optim.Adagrad):
    model = nn.Linear(10, 2).to(device.device)
    optimizer = kind(model.parameters(), lr=0.01)
    model(torch.ones(4, 10)).pow(2).sum().backward()
    optimizer.step()
    states = [
        v for s in optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor)
    ]
    print(f"{kind.__name__}: {len(states)} tensors of state, weights on {model.weight.device}")
    assert model.weight.device == device.device
