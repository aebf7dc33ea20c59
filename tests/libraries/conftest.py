"""What the tests with other libraries share. Models are small and random; nothing is downloaded."""

from __future__ import annotations

import os
from collections.abc import Iterator

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import pytest
import torch

import torch_remote  # noqa: F401


@pytest.fixture(autouse=True)
def same_start() -> Iterator[None]:
    from changes import forget_accelerate

    torch.manual_seed(0)
    yield
    forget_accelerate()
