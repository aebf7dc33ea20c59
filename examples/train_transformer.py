"""Trains a transformer encoder to find the most frequent token of a sequence."""

from __future__ import annotations

import torch
from common import build_on_device, parse_options, print_losses, train
from torch import Tensor, nn

VOCABULARY = 8
LENGTH = 16
WIDTH = 32


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, nhead=4, dim_feedforward=64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        encoded = self.encoder(self.tokens(tokens) + self.positions)
        return self.head(encoded.mean(dim=1))


def make_sequences(count: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(VOCABULARY, (count, LENGTH), generator=generator)
    return tokens, tokens.mode(dim=1).values


def main() -> None:
    options = parse_options(__doc__, steps=20)
    model = build_on_device(Counter, options)
    print_losses(train(model, *make_sequences(64, options.seed), options))


if __name__ == "__main__":
    main()
