"""What the training examples share: options, the optimizer, the loop. The models are in the examples."""

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
    """Names the backend if the device is a remote one; every other device is torch's own."""
    if torch_remote_wanted(device):
        import torch_remote  # noqa: F401


def torch_remote_wanted(device: str) -> bool:
    return device.split(":")[0] == "remote"


def build_on_device(make_model: Callable[[], nn.Module], options: argparse.Namespace) -> nn.Module:
    """Makes the model where it will live, so that its weights are drawn there and never travel."""
    torch.manual_seed(options.seed)
    with torch.device(options.device):
        return make_model()


def make_optimizer(model: nn.Module, options: argparse.Namespace) -> torch.optim.Optimizer:
    """foreach and fused are always given: what is left out depends on the device, and so would the last bits."""
    make = OPTIMIZERS[options.optimizer]
    return make(model.parameters(), foreach=options.foreach, fused=options.fused)


def train(
    model: nn.Module, inputs: Tensor, targets: Tensor, options: argparse.Namespace
) -> list[float]:
    """The loss of every step. They are read together at the end, so no step waits for one."""
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
    """Also in hexadecimal, so that two runs can be compared to the last bit."""
    for step, loss in enumerate(losses):
        print(f"step {step:3d}  loss {loss:.6f}  {loss.hex()}")
