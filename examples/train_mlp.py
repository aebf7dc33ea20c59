"""Trains a multilayer perceptron to tell two rings of points apart."""

from __future__ import annotations

import math

import torch
from common import build_on_device, parse_options, print_losses, train
from torch import Tensor, nn


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2)
    )


def make_rings(count: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 2
    angle = 2 * math.pi * torch.rand(count, generator=generator)
    radius = 1.0 + labels + 0.2 * torch.randn(count, generator=generator)
    points = torch.stack((radius * angle.cos(), radius * angle.sin()), dim=1)
    return points, labels


def main() -> None:
    options = parse_options(__doc__, steps=50)
    model = build_on_device(make_model, options)
    print_losses(train(model, *make_rings(256, options.seed), options))


if __name__ == "__main__":
    main()
