"""Random numbers of the device module. The server has the state; a seed is a message in order.

Seeding never connects: before a machine is connected, the generator keeps the seed. Taking a state
and putting it back neither connects nor waits: its bytes are fetched when they are first read, so
`fork_rng` and `torch.utils.checkpoint` cost no round trip.

If a failed call has stopped the thread, seeding and putting back a state raise that failure: the
server would discard them (docs/errors.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import overload

import torch

from . import _C
from ._backend import (
    DeviceLike,
    device_count,
    existing_index,
    max_devices,
    name,
    refuse_in_bad_fork,
)


class _DefaultGenerators(Sequence[torch.Generator]):
    """The default generators of all devices, as a sequence."""

    def __len__(self) -> int:
        return device_count()

    @overload
    def __getitem__(self, index: int) -> torch.Generator: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[torch.Generator, ...]: ...
    def __getitem__(self, index: int | slice) -> torch.Generator | tuple[torch.Generator, ...]:
        chosen = range(len(self))[index]
        if isinstance(chosen, int):
            return _C.default_generator(chosen)
        return tuple(_C.default_generator(each) for each in chosen)

    def __repr__(self) -> str:
        return repr(tuple(self))


default_generators = _DefaultGenerators()


def manual_seed(seed: int) -> None:
    """Seeds the current device. Does nothing in a forked child, and needs no machine."""
    if not _C.is_in_bad_fork():
        _C.raise_own_failure()
        _C.default_generator(_C.current_device()).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds every device, also of machines that are connected later."""
    # DataLoader workers call this through torch.manual_seed; a forked child must not use a session.
    if _C.is_in_bad_fork():
        return
    _C.raise_own_failure()
    for index in range(max_devices()):
        _C.default_generator(index).manual_seed(int(seed))


def seed() -> None:
    """Seeds the current device with a random number."""
    if not _C.is_in_bad_fork():
        _C.raise_own_failure()
        _C.default_generator(_C.current_device()).seed()


def seed_all() -> None:
    """Seeds every device with one random number."""
    if not _C.is_in_bad_fork():
        _C.raise_own_failure()
        manual_seed_all(_C.default_generator(0).seed())


def initial_seed() -> int:
    """The last seed of the current device."""
    return int(_C.default_generator(_C.current_device()).initial_seed())


def get_rng_state(device: DeviceLike = None) -> torch.Tensor:
    """The state of the device's generator as a CPU byte tensor. Reading its bytes waits."""
    refuse_in_bad_fork()
    return _C.take_rng_state(existing_index(device))


def set_rng_state(new_state: torch.Tensor, device: DeviceLike = None) -> None:
    """Puts back a state of `get_rng_state`."""
    if new_state.device.type != "cpu":
        raise TypeError(f"a {name()} RNG state is a CPU byte tensor, not one on {new_state.device}")
    refuse_in_bad_fork()
    _C.raise_own_failure()
    _C.default_generator(existing_index(device)).set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all devices, in order."""
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Puts back states of `get_rng_state_all`."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)
