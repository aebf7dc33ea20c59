"""The models of the figures, and one training step of each."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Step = Callable[[], Tensor]


class Block(nn.Module):
    """A GPT-2 block: attention and a four times wider MLP, each after a layer norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.norm_1(x)).split(width, dim=2)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(F.gelu(self.widen(self.norm_2(x))))


class GPT(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, length: int, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def gpt_step(
    device: str,
    *,
    layers: int,
    width: int,
    batch: int,
    length: int,
    vocabulary: int = 512,
    capturable: bool = False,
) -> Step:
    """An AdamW step on one batch that is on the device. Returns the loss, unread."""
    torch.manual_seed(0)
    with torch.device(device):
        model = GPT(layers, width, heads=4, length=length, vocabulary=vocabulary)
        tokens = torch.randint(vocabulary, (batch, length + 1))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].flatten()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=capturable)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def small_gpt_step(device: str, *, capturable: bool = False) -> Step:
    return gpt_step(device, layers=2, width=128, batch=2, length=32, capturable=capturable)


def gpt2_shaped_step(device: str) -> Step:
    return gpt_step(device, layers=12, width=64, batch=2, length=32)


def mlp(device: str) -> nn.Sequential:
    with torch.device(device):
        return nn.Sequential(
            nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)
        )


def mlp_step(device: str) -> Step:
    """An AdamW step with a batch from the CPU, as from a data loader. Returns the loss, unread."""
    model = mlp(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs, targets = torch.randn(8, 16), torch.randint(4, (8,))

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs.to(device)), targets.to(device))
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def repeat(step: Step, times: int) -> None:
    for _ in range(times):
        step()
