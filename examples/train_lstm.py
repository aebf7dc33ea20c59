"""Trains an LSTM to say whether a sequence of numbers has a positive sum."""

from __future__ import annotations

import torch
from common import build_on_device, parse_options, print_losses, train
from torch import Tensor, nn

LENGTH = 12
WIDTH = 32


class SignOfSum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, WIDTH, num_layers=2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, sequence: Tensor) -> Tensor:
        states, _ = self.lstm(sequence)
        return self.head(states[:, -1])


def make_sequences(count: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    sequences = torch.randn(count, LENGTH, 1, generator=generator)
    return sequences, (sequences.sum(dim=(1, 2)) > 0).long()


def main() -> None:
    options = parse_options(__doc__, steps=20)
    model = build_on_device(SignOfSum, options)
    print_losses(train(model, *make_sequences(64, options.seed), options))


if __name__ == "__main__":
    main()
