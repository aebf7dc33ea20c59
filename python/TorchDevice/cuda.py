"""`torch.cuda` as it is now: its names answer for the device in use."""

from __future__ import annotations

from typing import Any

import torch


def __getattr__(name: str) -> Any:
    return getattr(torch.cuda, name)


def __dir__() -> list[str]:
    return dir(torch.cuda)
