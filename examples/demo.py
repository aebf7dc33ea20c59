"""What `make demo` runs: trains a small model and prints its progress and its traffic."""

from __future__ import annotations

import argparse
import time

import torch
from common import torch_remote_wanted, use_device
from torch import Tensor, nn
from torch.nn import functional as F

EPOCHS = 10
BATCHES = 40
BAR_WIDTH = 40


def make_batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Points on a plane, and which of three spiral arms each is on."""
    arm = torch.randint(3, (128,), generator=generator)
    radius = torch.rand(128, generator=generator)
    angle = 4 * radius + arm * 2.1 + 0.2 * torch.randn(128, generator=generator)
    return torch.stack((radius * angle.cos(), radius * angle.sin()), dim=1), arm


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)
    )


def train_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, generator: torch.Generator, device: str
) -> float:
    """The mean loss. It is read once, at the end: 40 steps, one round trip."""
    total = torch.zeros((), device=device)
    for _ in range(BATCHES):
        points, arms = make_batch(generator)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(points.to(device)), arms.to(device))
        loss.backward()
        optimizer.step()
        total += loss.detach()
    return total.item() / BATCHES


def print_progress(epoch: int, loss: float, highest: float) -> None:
    """Prints the loss as a bar."""
    bar = "█" * round(BAR_WIDTH * loss / highest)
    print(f"epoch {epoch:2d}  loss {loss:.4f}  {bar}", flush=True)


def print_traffic(seconds: float) -> None:
    import torch_remote

    stats = torch_remote.stats()
    steps = EPOCHS * BATCHES
    print(f"{steps} training steps in {seconds:.1f} s on another process:")
    print(f"  {stats.calls:>9,} calls sent, {stats.calls / steps:.0f} a step")
    print(f"  {stats.syncs:>9,} times waited for an answer")
    print(f"  {stats.bytes_sent:>9,} bytes sent, {stats.bytes_received:,} received")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="remote", help="cpu gives the reference")
    device = parser.parse_args().device
    use_device(device)
    started = time.perf_counter()
    torch.manual_seed(0)
    with torch.device(device):
        model = make_model()
    # A remote device uses foreach by default; given here so that --device cpu does the same.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
    generator = torch.Generator().manual_seed(0)
    print(f"training on device {device!r}")
    highest = 0.0
    for epoch in range(EPOCHS):
        loss = train_epoch(model, optimizer, generator, device)
        highest = max(highest, loss)
        print_progress(epoch, loss, highest)
    if torch_remote_wanted(device):
        print_traffic(time.perf_counter() - started)


if __name__ == "__main__":
    main()
