"""Messages that say what to do, in words that do not mislead."""

from __future__ import annotations

import importlib.util
import itertools
import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import run_python

import torch_remote
from torch_remote import _memory
from torch_remote.providers import parse_url, ray
from torch_remote_cli.commands import bench

ROOT = Path(__file__).parents[2]


def test_commands_in_messages_can_be_pasted_into_every_shell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(torch_remote.ConnectionError, match=r"pip install 'torch-remote\[ray\]'"):
        ray.launch(parse_url("ray://"))
    for path in (ROOT / "python").rglob("*.py"):
        assert not re.search(r"install [^']*torch-remote\[", path.read_text()), path


def test_the_page_says_of_which_time_its_figures_are() -> None:
    for path in (ROOT / "python/torch_remote_cli/web").iterdir():
        assert "last minute" not in path.read_text(), path


SAVE = "import sys, torch, torch_modal; torch.save(torch.ones(2, device='modal'), {!r})"


def test_a_checkpoint_of_the_other_name_says_what_helps(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint.pt"
    assert run_python(SAVE.format(str(file))).returncode == 0
    with pytest.raises(RuntimeError, match=r"tensors of modal:0.*is named remote") as raised:
        torch.load(file)
    (advice,) = re.findall(r'map_location="(\w+)"', str(raised.value))
    assert torch.load(file, map_location=advice).tolist() == [1, 1]
    assert "import torch_modal" not in str(raised.value)


# --- bench


class Clock:
    """Copies take time on it: the first four of a size are slow, as memory is new at both ends."""

    def __init__(self) -> None:
        self.now = 0.0
        self._copies: dict[int, Any] = {}

    def copied(self, tensor: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        size = source.numel()
        number = next(self._copies.setdefault(size, itertools.count()))
        self.now += size / (1e8 if number < 4 else 1e9)
        return tensor


def test_bench_tells_the_rate_of_copies_that_are_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(torch_remote, "synchronize", lambda: None)
    monkeypatch.setattr(_memory, "mem_get_info", lambda device: (1 << 40, 1 << 40))
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
    monkeypatch.setattr(torch.Tensor, "copy_", lambda to, source: clock.copied(to, source))
    rates = bench.bandwidth(torch.device("cpu"))
    assert rates is not None
    up, down = rates
    assert up == pytest.approx(1e9) and down == pytest.approx(1e9)


def test_bench_keeps_the_rate_it_has_when_memory_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()

    def copied(to: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        if source.numel() > most:
            raise torch.OutOfMemoryError("another program has it")
        return clock.copied(to, source)

    monkeypatch.setattr(torch_remote, "synchronize", lambda: None)
    monkeypatch.setattr(_memory, "mem_get_info", lambda device: (1 << 40, 1 << 40))
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
    monkeypatch.setattr(torch.Tensor, "copy_", copied)
    most = 4 << 20
    assert bench.bandwidth(torch.device("cpu")) == pytest.approx((1e9, 1e9))
    most = 0
    assert bench.bandwidth(torch.device("cpu")) is None
