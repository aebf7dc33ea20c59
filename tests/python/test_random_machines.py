"""Random numbers on several devices and machines: each has its own generators."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers import assert_same, serving

import torch_remote

F = torch.nn.functional


def test_two_devices_have_two_generators(tmp_path: Path) -> None:
    with serving(f"unix://{tmp_path}/s", "--devices", "2") as url, torch_remote.connect(url) as it:
        devices = it.devices
        cpus = [torch.Generator().manual_seed(seed) for seed in (21, 22)]
        for device, seed in zip(devices, (21, 22), strict=True):
            with torch.remote.device(device):
                torch.remote.manual_seed(seed)
        states = [torch.remote.get_rng_state(device) for device in devices]
        for _ in range(2):
            for device, cpu in zip(devices, cpus, strict=True):
                drawn = torch.rand(5, device=device)
                assert_same(drawn, torch.rand(5, generator=cpu))
                F.dropout(torch.ones(6, device=device), 0.5)  # uses the default generator
                torch.empty(6).bernoulli_(0.5, generator=cpu)
        for device, state, seed in zip(devices, states, (21, 22), strict=True):
            torch.remote.set_rng_state(state, device)
            again = torch.Generator().manual_seed(seed)
            assert_same(torch.rand(5, device=device), torch.rand(5, generator=again))
        # A state of one device may be set on the other.
        torch.remote.set_rng_state(torch.remote.get_rng_state(devices[0]), devices[1])
        assert_same(torch.rand(3, device=devices[0]), torch.rand(3, device=devices[1]).cpu())


def test_a_state_goes_from_one_machine_to_another(tmp_path: Path) -> None:
    torch.manual_seed(6)
    state = torch.remote.get_rng_state()
    with serving(f"unix://{tmp_path}/s") as url, torch_remote.connect(url) as machine:
        device = machine.devices[0]
        torch.remote.set_rng_state(state, device)
        assert_same(torch.rand(3, device=device), torch.rand(3))


def test_a_state_of_a_machine_that_is_gone_says_so(tmp_path: Path) -> None:
    with serving(f"unix://{tmp_path}/s") as url, torch_remote.connect(url) as machine:
        state = torch.remote.get_rng_state(machine.devices[0])
        known = torch.remote.get_rng_state(machine.devices[0]).clone()
    assert known.numel() == state.numel()
    with pytest.raises(torch_remote.SessionLost):
        state.tolist()
