"""Programs that try batch sizes until one fits find it, though they read no value."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import serving

import torch_remote

MIB = 1 << 20
WIDTH = 1024


@pytest.fixture
def small(tmp_path: Path) -> Iterator[torch.device]:
    """A device with 64 MiB for tensors."""
    options = ("--device", "cpu", "--max-memory", "64MiB")
    with (
        serving(f"unix://{tmp_path}/server.sock", *options) as url,
        torch_remote.connect(url) as machine,
    ):
        yield machine.devices[0]


def train(batch_size: int, device: torch.device) -> torch.nn.Module:
    """Two steps of a small model. Nothing is read."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        batch = torch.ones(batch_size, WIDTH, device=device)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    return model


def test_what_does_not_fit_raises_with_the_servers_figures(small: torch.device) -> None:
    kept = torch.ones(4 * MIB, device=small)
    with pytest.raises(torch.OutOfMemoryError) as raised:
        torch.ones(32 * MIB, device=small).sum().item()
    text = str(raised.value)
    assert "CPU out of memory. Tried to allocate 128.00 MiB." in text
    assert "total capacity of 64.00 MiB of which 48.00 MiB is free" in text
    assert "16.00 MiB is allocated by tensors, and 0 bytes is reserved but unallocated" in text
    assert f"on {small} (" in text and f"called at {__file__}:" in text
    assert kept.sum().item() == 4 * MIB


def test_an_upload_that_does_not_fit_has_the_figures_too(small: torch.device) -> None:
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 128\.00 MiB"):
        torch.ones(32 * MIB).to(small)
        torch.remote.synchronize(small)
    assert torch.remote.memory_stats(small)["num_ooms"] == 1


def test_the_hosts_figures_are_told_where_the_host_has_no_more(tmp_path: Path) -> None:
    with (
        serving(f"unix://{tmp_path}/server.sock", "--device", "cpu") as url,
        torch_remote.connect(url) as machine,
    ):
        x = torch.ones(2, device=machine.devices[0])
        with pytest.raises(torch.OutOfMemoryError) as raised:
            x[0].expand(1 << 42).clone()
        text = str(raised.value)
        assert "CPU out of memory. Tried to allocate 16384.00 GiB." in text
        assert "total capacity of" in text and "DefaultCPUAllocator" in text
        assert f"called at {__file__}:" in text
        assert x.tolist() == [1, 1]


def test_a_finder_halves_until_a_batch_is_below_the_servers_limit(small: torch.device) -> None:
    size, tried = 1 << 16, 0
    while True:
        try:
            model = train(size, small)
            break
        except torch.OutOfMemoryError:
            size, tried = size // 2, tried + 1
            torch.remote.empty_cache()
    assert tried > 0 and size * WIDTH * 4 < 64 * MIB
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_accelerates_finder_finds_a_batch_that_fits_with_nothing_read() -> None:
    memory: Any = pytest.importorskip("accelerate.utils.memory", reason="accelerate is missing")
    tried: list[int] = []
    smaller = iter((1 << 32, 1 << 30, 100))  # of rows of 4 KiB: 16 TiB, 4 TiB
    device = torch.device("remote")

    @memory.find_executable_batch_size(  # type: ignore[untyped-decorator]
        starting_batch_size=1 << 34, reduce_batch_size_fn=lambda: next(smaller)
    )
    def attempt(batch_size: int) -> torch.nn.Module:
        tried.append(batch_size)
        return train(batch_size, device)

    model = attempt()
    assert tried == [1 << 34, 1 << 32, 1 << 30, 100]
    expected = train(100, torch.device("cpu"))
    for ours, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs)
