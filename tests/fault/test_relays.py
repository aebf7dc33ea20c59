"""A copy between two servers whose connections are cut in the middle."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers import assert_same
from proxy import BACK, THERE, Fault, FaultProxy

import torch_remote

SIZE = 48 << 20


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_REMOTE_PATIENCE", "120s")


@pytest.mark.parametrize("cut", ["source", "destination"])
def test_a_copy_between_servers_survives_cuts(cut: str, server: str, tmp_path: Path) -> None:
    direction = BACK if cut == "source" else THERE
    local = torch.randint(-9, 9, (SIZE // 4,), dtype=torch.int32)

    def plan(number: int) -> Fault | None:
        """Each connection ends after 5 MiB and a bit, until it has ended a few times."""
        return Fault(direction=direction, after=(5 << 20) + 12345 * number) if number < 6 else None

    with (
        FaultProxy(server, plan, path=str(tmp_path / "p")) as proxy,
        torch_remote.connect(proxy.url) as bad,
        torch_remote.connect("local") as good,
    ):
        source, destination = (bad, good) if cut == "source" else (good, bad)
        x = local.to(source.devices[0])
        y = x.to(destination.devices[0])
        assert_same(y.add(1).cpu(), local + 1)
        assert proxy.fired >= 3
        assert bad.status()["state"] == good.status()["state"] == "open"
