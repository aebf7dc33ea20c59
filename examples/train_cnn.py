"""Trains a convolutional network with batch norm and dropout to find a bright spot's quarter."""

from __future__ import annotations

import torch
from common import build_on_device, parse_options, print_losses, train
from torch import Tensor, nn

SIDE = 16


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, kernel_size=3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, kernel_size=3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Flatten(),
        nn.Linear(16 * (SIDE // 2) ** 2, 4),
    )


def make_images(count: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(count, 1, SIDE, SIDE, generator=generator)
    row, column = torch.randint(SIDE, (2, count), generator=generator)
    images[torch.arange(count), 0, row, column] += 8.0
    half = SIDE // 2
    return images, 2 * (row // half) + column // half


def main() -> None:
    options = parse_options(__doc__, steps=20)
    model = build_on_device(make_model, options)
    print_losses(train(model, *make_images(64, options.seed), options))


if __name__ == "__main__":
    main()
