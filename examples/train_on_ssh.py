"""Trains a small model on a machine that ssh reaches: `python train_on_ssh.py ssh://gpu-box`.

torch-remote must be installed there; `?command=/path/to/torch-remote` says where, and `?install=1`
copies the server. Without an argument it trains on the machine that is configured, or here.
"""

from __future__ import annotations

import sys

import torch
from torch import nn

import torch_remote

STEPS = 20


def train(device: torch.device) -> list[float]:
    """The losses. They are read together at the end, so no step waits for the host."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    inputs = torch.randn(256, 16).to(device)
    targets = inputs.sum(dim=1, keepdim=True)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


def main() -> None:
    url = sys.argv[1] if len(sys.argv) > 1 else None
    with torch_remote.connect(url) as machine:
        status = machine.status()
        print(f"training on {torch.remote.get_device_name(machine.devices[0])}, {status['url']}")
        print(f"who stops it: {status['ends']}")
        losses = train(machine.devices[0])
    for step in range(0, STEPS, 5):
        print(f"step {step:2d}  loss {losses[step]:.4f}")
    print(f"step {STEPS - 1:2d}  loss {losses[-1]:.4f}")


if __name__ == "__main__":
    main()
