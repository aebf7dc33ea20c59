"""Training over TLS on a bad network ends as on a good one, and no flipped bit goes unnoticed."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from helpers import is_alive, serving, wait_until
from plans import Plan
from proxy import BACK, THERE, Fault, FaultProxy
from training import train

import torch_remote

Uncut = dict[int, tuple[int, str]]
Server = tuple[str, Path]

TLS_HANDSHAKE = 2000  # about the bytes of either direction before the first frame


@pytest.fixture(scope="module")
def tls_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Its URL and token file."""
    folder = tmp_path_factory.mktemp("tls")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_STATE_HOME", str(folder))
        environment.setenv("TORCH_REMOTE_KEEPALIVE", "1s")  # of the server
        with serving("tls://127.0.0.1:0", "--token-file", str(folder / "token")) as url:
            yield url, folder / "token"


@pytest.fixture(autouse=True)
def alert_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_REMOTE_PATIENCE", "120s")
    monkeypatch.setenv("TORCH_REMOTE_KEEPALIVE", "1s")


def at_random(kind: str, seed: int, count: int) -> Plan:
    """Faults in the first connections: some in the handshakes, most behind them."""
    chance = random.Random(seed)

    def plan(number: int) -> Fault | None:
        if number >= count:
            return None
        side = chance.choice((THERE, BACK))
        if number > 0 and chance.random() < 0.2:
            return Fault(kind, side, chance.randrange(TLS_HANDSHAKE))
        far = math.exp(chance.uniform(math.log(2), math.log(40_000)))
        return Fault(kind, side, TLS_HANDSHAKE + int(far))

    return plan


def assert_survives(server: Server, plan: Plan, uncut: Uncut, faults: int) -> None:
    url, token = server
    with (
        FaultProxy(url, plan) as proxy,
        torch_remote.connect(proxy.url, token_file=token) as machine,
    ):
        device = machine.devices[0]
        assert train(device, 30) == uncut[30]
        for value in range(1000):
            if proxy.fired >= faults:
                break
            assert torch.full((2048,), value).to(device).cpu().eq(value).all()
        assert machine.status()["state"] == "open"
        assert proxy.fired >= faults


def test_a_session_cut_at_random_bytes_of_tls_ends_as_an_uncut_one(
    tls_server: Server, uncut: Uncut
) -> None:
    assert_survives(tls_server, at_random("cut", 1, 40), uncut, faults=40)


@pytest.mark.parametrize("seed", range(3))
def test_a_session_over_tls_whose_bits_are_flipped_ends_as_a_good_one(
    seed: int, tls_server: Server, uncut: Uncut
) -> None:
    """On a plain socket only an end is promised: here also that every value is right."""
    assert_survives(tls_server, at_random("flip", seed, 12), uncut, faults=12)


# Promise 3a.
@pytest.mark.parametrize("direction", [THERE, BACK])
def test_a_bit_flipped_in_the_first_handshake_is_an_error_or_mended(
    direction: str, tls_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_REMOTE_PATIENCE", "10s")
    url, token = tls_server
    # The preamble, the header and the middle of the first record, what follows.
    for at in (0, 8, 12, 20, 33, 35, 37, 40, 90, 200, 350, 420, 700, 1000):
        plan = Fault("flip", direction, at)
        with (
            FaultProxy(url, lambda n, plan=plan: plan if n == 0 else None) as proxy,
            contextlib.suppress(torch_remote.ConnectionError),
            torch_remote.connect(proxy.url, token_file=token) as machine,
        ):
            assert torch.arange(4, device=machine.devices[0]).tolist() == [0, 1, 2, 3]
    with torch_remote.connect(url, token_file=token) as machine:
        assert torch.ones(2, device=machine.devices[0]).tolist() == [1, 1]


def test_a_line_that_falls_silent_is_replaced(tls_server: Server, uncut: Uncut) -> None:
    def plan(number: int) -> Fault | None:
        return Fault("half_open", THERE, TLS_HANDSHAKE + 5_000) if number == 0 else None

    assert_survives(tls_server, plan, uncut, faults=1)


def test_a_session_that_is_gone_is_refused_inside_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the client can believe it, and does not wait for its patience to end."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    token = tmp_path / "token"
    with (
        serving("tls://127.0.0.1:0", "--token-file", str(token), "--lease", "1s") as url,
        FaultProxy(url, lambda number: None) as proxy,
        torch_remote.connect(proxy.url, token_file=token) as machine,
    ):
        x = torch.ones(2, device=machine.devices[0])
        assert x.sum().item() == 2
        proxy.closed.set()
        proxy.hang_up()
        pid = int(machine.status()["pid"])
        assert wait_until(lambda: not is_alive(pid))
        proxy.closed.clear()
        with pytest.raises(torch_remote.SessionLost, match=r"(lease|no longer knows)"):
            x.sum().item()
