"""A short training session that notices every lost and every repeated call."""

from __future__ import annotations

import hashlib
import json
import os

import torch

STEPS = 200


def train(device: torch.device | str, steps: int = STEPS) -> tuple[int, str]:
    """The counter, which must be `3 * steps`, and a hash of everything computed and read."""
    generator = torch.Generator().manual_seed(1)
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(128, 96), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(96, 8)
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    counter = torch.zeros((), dtype=torch.long, device=device)
    seen = hashlib.sha256()
    torch.manual_seed(2)
    for step in range(steps):
        counter.add_(1)
        rows = 16 if step % 3 else 96  # uploads inside a message and in bulk
        x = torch.randn(rows, 128, generator=generator).to(device)
        y = torch.randn(rows, 8, generator=generator).to(device)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        counter.add_(1)
        optimizer.step()
        counter.add_(1)
        if step % 2 == 0:
            seen.update(str(loss.item()).encode())
        if step % 10 == 0:
            seen.update(x.mul(2).repeat(4, 1).cpu().numpy().tobytes())  # in bulk
    for parameter in model.parameters():
        seen.update(parameter.detach().cpu().numpy().tobytes())
    return int(counter.item()), seen.hexdigest()


if __name__ == "__main__":
    import torch_remote  # noqa: F401

    counter, digest = train("remote", int(os.environ.get("STEPS", STEPS)))
    print(json.dumps({"counter": counter, "digest": digest}))
