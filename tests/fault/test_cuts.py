"""Training over a bad network ends as on a good one. `make faults` does this many times."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from helpers import serving
from plans import Plan, at_header_bytes, at_random_bytes
from proxy import BACK, HEADER, THERE, Fault, FaultProxy
from training import train

import torch_remote

Uncut = dict[int, tuple[int, str]]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_REMOTE_PATIENCE", "120s")


def assert_survives(proxy: FaultProxy, uncut: Uncut, steps: int, faults: int) -> None:
    with proxy, torch_remote.connect(proxy.url) as machine:
        device = machine.devices[0]
        assert train(device, steps) == uncut[steps]
        # How many bytes are sent depends on the frames: go on until all faults have fired.
        for value in range(1000):
            if proxy.fired >= faults:
                break
            assert torch.full((2048,), value).to(device).cpu().eq(value).all()
        assert machine.status()["state"] == "open"
        assert proxy.fired >= faults


def test_the_uncut_run_counts_every_call(uncut: Uncut) -> None:
    assert {steps: counter for steps, (counter, _) in uncut.items()} == {30: 90, 100: 300}
    assert train("cpu", 30) == uncut[30]  # so the digest also depends on values


# Promise 9.
@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_a_session_cut_at_random_bytes_ends_as_an_uncut_one(
    transport: str, server: str, uncut: Uncut, tmp_path: Path
) -> None:
    path = str(tmp_path / "p") if transport == "unix" else None
    plan = at_random_bytes(seed=len(transport), cuts=80)
    assert_survives(FaultProxy(server, plan, path=path), uncut, 100, faults=80)


# Promise 9.
def test_a_session_cut_at_every_byte_boundary_of_a_header_ends_as_an_uncut_one(
    server: str, uncut: Uncut
) -> None:
    assert_survives(
        FaultProxy(server, at_header_bytes(1, rounds=1)), uncut, 100, faults=2 * (HEADER + 1)
    )


# Promise 9.
def test_a_graph_cut_at_every_byte_of_its_messages_runs_once_for_each_replay(server: str) -> None:
    """Connection n is cut n bytes after the first frame that it sends, or sends again, begins."""
    cuts, replays = 400, 0
    with (
        FaultProxy(server, lambda n: Fault("cut", THERE, n, frame=0)) as proxy,
        torch_remote.connect(proxy.url) as machine,
    ):
        x = torch.zeros(2, dtype=torch.int64, device=machine.devices[0])
        y = torch.ones_like(x)
        while proxy.fired < cuts:
            graph = torch_remote.Graph()
            with graph:
                z = x.add_(y) * 3
            for _ in range(2):  # PROGRAM and RUN, then RUN alone
                graph.replay()
                replays += 1
                assert z.tolist() == [3 * replays] * 2
        assert x.tolist() == [replays] * 2
    assert replays > 0


def test_a_session_whose_line_is_truncated_ends_as_an_uncut_one(server: str, uncut: Uncut) -> None:
    plan = at_random_bytes(seed=9, cuts=20, kinds=("truncate", "cut"))
    assert_survives(FaultProxy(server, plan), uncut, 30, faults=20)


@pytest.mark.parametrize("line", [{"delay": 0.002}, {"rate": 400_000}], ids=["delayed", "slow"])
def test_a_slow_line_changes_nothing(line: dict[str, float], server: str, uncut: Uncut) -> None:
    proxy = FaultProxy(server, lambda number: None, **line)  # type: ignore[arg-type]
    assert_survives(proxy, uncut, 30, faults=0)
    assert proxy.accepted == 1


@pytest.fixture
def alert_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Both ends notice silence after a second."""
    monkeypatch.setenv("TORCH_REMOTE_KEEPALIVE", "1s")
    with serving(f"unix://{tmp_path}/s") as url:
        yield url


@pytest.mark.parametrize("direction", [THERE, BACK])
def test_a_line_that_falls_silent_is_replaced(
    direction: str, alert_server: str, uncut: Uncut
) -> None:
    def plan(number: int) -> Fault | None:
        return Fault("half_open", direction, 5_000) if number == 0 else None

    assert_survives(FaultProxy(alert_server, plan), uncut, 30, faults=1)


def flips(seed: int) -> Plan:
    cuts = at_random_bytes(seed, 3, kinds=("flip",))
    return lambda number: cuts(number) if number < 3 else None


# Promise 8.
def test_flipped_bits_neither_hang_the_client_nor_harm_the_server(
    alert_server: str, uncut: Uncut, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain socket cannot detect a flip in a tensor's bytes; only an end is promised."""
    monkeypatch.setenv("TORCH_REMOTE_PATIENCE", "5s")
    for seed in range(12):
        with (
            FaultProxy(alert_server, flips(seed)) as proxy,
            contextlib.suppress(RuntimeError, IndexError, ValueError, TypeError),
            torch_remote.connect(proxy.url) as machine,
        ):
            train(machine.devices[0], 5)
    with torch_remote.connect(alert_server) as machine:
        assert train(machine.devices[0], 30) == uncut[30]
        assert torch.ones(2, device=machine.devices[0]).tolist() == [1, 1]
