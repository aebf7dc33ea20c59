"""Modules that module_db lacks, in its form: dropout, functional attention, a residual network."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.testing._internal.common_modules import FunctionInput, ModuleInfo, ModuleInput


class Attention(nn.Module):
    """scaled_dot_product_attention between two projections, as models write it."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)

    def forward(self, tokens: Tensor) -> Tensor:
        batch, length, _ = tokens.shape
        parts = self.into(tokens).view(batch, length, 3, 2, 8).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*parts.unbind(0), is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, 16))


class Residual(nn.Module):
    """The parts of a resnet: convolutions, batch norms, a shortcut, pooling, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()
        )
        self.block = nn.Sequential(
            nn.Conv2d(8, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.Conv2d(8, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
        )
        self.classifier = nn.Linear(8, 5)

    def forward(self, images: Tensor) -> Tensor:
        stem = functional.max_pool2d(self.stem(images), 3, stride=2, padding=1)
        features = functional.relu(stem + self.block(stem))
        return self.classifier(functional.adaptive_avg_pool2d(features, 1).flatten(1))


class _Info(ModuleInfo):
    """Named by its class, without the module."""

    @property
    def name(self) -> str:
        kind = self.module_cls
        return f"nn.{kind.__name__}" if hasattr(nn, kind.__name__) else kind.__name__


def _info(kind: type[nn.Module], shape: tuple[int, ...]) -> ModuleInfo:
    def inputs(info: Any, device: str, dtype: torch.dtype, **_: Any) -> list[ModuleInput]:
        sample = torch.randn(shape, device=device, dtype=dtype)
        return [ModuleInput(constructor_input=FunctionInput(), forward_input=FunctionInput(sample))]

    return _Info(kind, module_inputs_func=inputs)


MORE_MODULES = [
    _info(nn.Dropout, (4, 6)),
    _info(Attention, (2, 5, 16)),
    _info(Residual, (2, 3, 16, 16)),
]
