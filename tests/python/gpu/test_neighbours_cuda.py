"""Two sessions of one CUDA server are one user to the driver. Can one name what the other has?

A library of attacks (neighbours.cpp) runs in both: the victim makes objects of the driver, the
attacker tries to open them: by a handle of CUDA's IPC, by address, by descriptor, and through the
pipes of MPS.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from helpers import serving
from library.build import library

import torch_remote

SECRET = 0x5EC2E7
MPS = Path("/tmp/nvidia-mps")
REFUSED = {errno.EPERM, errno.EACCES}


class Session:
    """A session that runs an attacker's code."""

    def __init__(self, machine: torch_remote.Machine) -> None:
        self._x = torch.zeros(1, device=machine.devices[0])
        self._x.sum().item()
        self.pid = int(machine.status()["pid"])

    def run(self, what: str, *arguments: object) -> object:
        return getattr(torch.ops.neighbours, what)(self._x, *arguments)

    def numbers(self, what: str, *arguments: object) -> list[int]:
        return self.run(what, *arguments).tolist()  # type: ignore[attr-defined,no-any-return]

    def number(self, what: str, *arguments: object) -> int:
        return int(self.run(what, *arguments))  # type: ignore[call-overload,no-any-return]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Session, Session]]:
    """A victim and an attacker: two sessions of one server with the sandbox."""
    built = library(Path(__file__).with_name("neighbours.cpp"))
    torch.ops.load_library(built)
    folder = tmp_path_factory.mktemp("neighbours")
    options = ("--device", "cuda", "--library", str(built))
    with (
        serving(f"unix://{folder}/s", *options) as url,
        torch_remote.connect(url) as one,
        torch_remote.connect(url) as two,
    ):
        yield Session(one), Session(two)


def exported(session: Session) -> tuple[int, list[int]]:
    """The address and the handle of memory with the secret."""
    error, address, *handle = session.numbers("ipc_export", SECRET)
    if error != 0:
        pytest.skip(f"the driver gives a sandboxed session no IPC handle: error {error}")
    return address, handle


@pytest.mark.xfail(reason="the driver separates users, not processes: SECURITY.md", strict=True)
def test_a_handle_of_the_victim_is_worth_nothing_to_its_neighbour(
    pair: tuple[Session, Session],
) -> None:
    """The victim gives its handle away here; whether a neighbour can guess one was not tried."""
    victim, attacker = pair
    _, handle = exported(victim)
    error, value = attacker.numbers("ipc_open", handle)
    assert (error != 0, value) == (True, 0), f"the driver opened it, and {value:#x} was read"


def test_addresses_of_the_victim_are_not_the_neighbours(pair: tuple[Session, Session]) -> None:
    victim, attacker = pair
    address, _ = exported(victim)
    assert victim.number("read_addresses", address, 1, 1) == 1
    own, _ = exported(attacker)
    outside = address + (1 << 32) if address == own else address  # both may have the same numbers
    assert attacker.number("read_addresses", outside, 512, 1 << 20) <= 2  # of its own allocations


def test_no_descriptor_of_memory_is_in_the_neighbours_table(pair: tuple[Session, Session]) -> None:
    victim, attacker = pair
    error, descriptor = victim.numbers("descriptor_export")
    if error != 0:
        pytest.skip(f"the driver exports no descriptor to a sandboxed session: error {error}")
    assert victim.number("import_descriptors") >= 1
    assert attacker.number("import_descriptors") == 0
    assert attacker.number("steal_descriptor", victim.pid, descriptor) in REFUSED
    path = f"/proc/{victim.pid}/fd/{descriptor}"
    assert attacker.number("open_file", path, False) in REFUSED


@pytest.mark.parametrize("name", ["control", "control_lock", "log", "nvidia-cuda-mps-control.pid"])
def test_the_pipes_of_mps_cannot_be_reached(name: str, pair: tuple[Session, Session]) -> None:
    """MPS joins processes of a user into one context of the GPU."""
    path = MPS / name
    made = not path.exists()
    if made:  # as if MPS ran
        MPS.mkdir(exist_ok=True)
        path.touch()
    try:
        attacker = pair[1]
        assert attacker.number("open_file", str(path), True) in REFUSED
        assert attacker.number("open_file", str(path), False) in REFUSED
        assert attacker.number("connect_unix", str(path)) in REFUSED
    finally:
        if made:
            path.unlink()
