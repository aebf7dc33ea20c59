"""A training script with accelerate, for test_launch.py: `accelerate launch` starts it.

The arguments are a folder, and `import` if it is to import torch_remote. Each process writes what
it has seen to the folder.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset


def make_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))


def batches() -> DataLoader[Any]:
    numbers = torch.Generator().manual_seed(1)
    return DataLoader(TensorDataset(torch.randn(32, 4, generator=numbers)), batch_size=4)


def optimizer_of(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def expected_losses(processes: int) -> list[list[float]]:
    """By process: the training on the CPU. accelerate deals the batches out in turn."""
    model = make_model()
    optimizer = optimizer_of(model)
    losses: list[list[float]] = [[] for _ in range(processes)]
    for index, (batch,) in enumerate(batches()):
        loss = model(batch).square().mean()
        (loss / processes).backward()
        losses[index % processes].append(loss.item())
        if index % processes == processes - 1:
            optimizer.step()
            optimizer.zero_grad()
    return losses


def main() -> None:
    from accelerate import Accelerator

    accelerator = Accelerator()
    model, loader = make_model(), batches()
    model, optimizer, loader = accelerator.prepare(model, optimizer_of(model), loader)
    losses = []
    for (batch,) in loader:
        loss = model(batch).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    rank = accelerator.process_index
    ranks = accelerator.gather(torch.tensor([rank], device=accelerator.device))
    accelerator.wait_for_everyone()
    seen = {"losses": losses, "device": str(batch.device), "ranks": ranks.tolist()}
    (Path(sys.argv[1]) / f"rank{rank}.json").write_text(json.dumps(seen))
    accelerator.end_training()


if __name__ == "__main__":
    if "import" in sys.argv:
        import torch_remote  # noqa: F401
    main()
