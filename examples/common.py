"""What the training examples share: options, the optimizer, the loop."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

OPTIMIZERS = {
    "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "adam": partial(torch.optim.Adam, lr=0.01),
    "adamw": partial(torch.optim.AdamW, lr=0.01),
}


def parse_options(description: str | None, steps: int) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--device", default="remote", help="cpu gives the reference")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adamw")
    parser.add_argument("--foreach", action="store_true", help="one call for all parameters")
    parser.add_argument("--fused", action="store_true", help="one call for the whole step")
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    use_device(options.device)
    return options


def use_device(device: str) -> None:
    """Imports the backend if the device is a remote one."""
    if torch_remote_wanted(device):
        import torch_remote  # noqa: F401


def torch_remote_wanted(device: str) -> bool:
    return device.split(":")[0] == "remote"


def build_on_device(make_model: Callable[[], nn.Module], options: argparse.Namespace) -> nn.Module:
    """Makes the model on its device, so that its weights are drawn there."""
    torch.manual_seed(options.seed)
    with torch.device(options.device):
        return make_model()


def make_optimizer(model: nn.Module, options: argparse.Namespace) -> torch.optim.Optimizer:
    """Gives foreach and fused, whose defaults, and so the rounding, depend on the device."""
    make = OPTIMIZERS[options.optimizer]
    return make(model.parameters(), foreach=options.foreach, fused=options.fused)


def train(
    model: nn.Module, inputs: Tensor, targets: Tensor, options: argparse.Namespace
) -> list[float]:
    """The loss of every step. They are read together at the end, so no step waits."""
    optimizer = make_optimizer(model, options)
    loss_of = nn.CrossEntropyLoss()
    inputs, targets = inputs.to(options.device), targets.to(options.device)
    losses = []
    for _ in range(options.steps):
        optimizer.zero_grad()
        loss = loss_of(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


def print_losses(losses: list[float]) -> None:
    """Prints them in hexadecimal too, so that two runs can be compared to the last bit."""
    for step, loss in enumerate(losses):
        print(f"step {step:3d}  loss {loss:.6f}  {loss.hex()}")
