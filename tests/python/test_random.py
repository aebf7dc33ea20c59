"""Random numbers: a CPU server gives what the CPU gives for the same seed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from helpers import DEVICE, assert_same

DRAWS: dict[str, Callable[[str], torch.Tensor]] = {
    "rand": lambda device: torch.rand(1000, device=device),
    "randn": lambda device: torch.randn(33, 17, device=device),
    "randint": lambda device: torch.randint(-5, 1000, (100,), device=device),
    "randperm": lambda device: torch.randperm(50, device=device),
    "normal_": lambda device: torch.empty(100, device=device).normal_(2, 3),
    "uniform_": lambda device: torch.empty(100, dtype=torch.double, device=device).uniform_(-1, 1),
    "bernoulli": lambda device: torch.bernoulli(torch.full((100,), 0.3, device=device)),
    "exponential_": lambda device: torch.empty(100, device=device).exponential_(),
    "multinomial": lambda device: torch.multinomial(torch.arange(1.0, 9.0, device=device), 5),
    "poisson": lambda device: torch.poisson(torch.arange(1.0, 9.0, device=device)),
    "rand_like": lambda device: torch.rand_like(torch.empty(20, 3, device=device)),
    "half": lambda device: torch.randn(64, dtype=torch.half, device=device),
    "dropout": lambda device: torch.nn.functional.dropout(torch.ones(100, device=device), 0.4),
}


@pytest.mark.parametrize("name", DRAWS)
def test_the_same_seed_gives_the_cpus_numbers(name: str) -> None:
    torch.manual_seed(123)
    expected = [DRAWS[name]("cpu"), DRAWS[name]("cpu")]
    torch.manual_seed(123)
    assert_same([DRAWS[name](DEVICE), DRAWS[name](DEVICE)], expected)


def test_a_generator_of_ones_own_gives_the_cpus_numbers() -> None:
    ours = torch.Generator(DEVICE).manual_seed(5)
    cpus = torch.Generator().manual_seed(5)
    for _ in range(3):
        assert_same(torch.randn(40, generator=ours, device=DEVICE), torch.randn(40, generator=cpus))
    assert ours.device.type == torch.device(DEVICE).type
    assert ours.initial_seed() == 5


def test_a_generators_state_can_be_kept_and_put_back() -> None:
    generator = torch.Generator(DEVICE).manual_seed(5)
    torch.rand(3, generator=generator, device=DEVICE)
    state = generator.get_state()
    first = torch.rand(9, generator=generator, device=DEVICE)
    generator.set_state(state)
    assert_same(torch.rand(9, generator=generator, device=DEVICE), first.cpu())


def test_two_generators_do_not_disturb_each_other() -> None:
    one, two = (torch.Generator(DEVICE).manual_seed(seed) for seed in (1, 2))
    alone = torch.rand(8, generator=torch.Generator(DEVICE).manual_seed(1), device=DEVICE)
    halves = []
    for _ in range(2):
        halves.append(torch.rand(4, generator=one, device=DEVICE))
        torch.rand(4, generator=two, device=DEVICE)
        torch.rand(4, device=DEVICE)
    expected = torch.Generator().manual_seed(1)
    assert_same(halves, [torch.rand(4, generator=expected) for _ in range(2)])
    assert alone.shape == (8,)


def test_the_devices_state_can_be_kept_and_put_back() -> None:
    torch.remote.manual_seed(9)
    assert torch.remote.initial_seed() == 9
    torch.rand(5, device="remote")
    state = torch.remote.get_rng_state("remote")
    states = torch.remote.get_rng_state_all()
    assert state.device.type == "cpu" and state.dtype == torch.uint8
    first = torch.rand(5, device="remote").cpu()
    torch.remote.set_rng_state(state, "remote:0")
    assert_same(torch.rand(5, device="remote"), first)
    torch.remote.set_rng_state_all(states)
    assert_same(torch.rand(5, device="remote"), first)


def test_fork_rng_puts_the_state_back() -> None:
    torch.remote.manual_seed(9)
    expected = torch.rand(5, device="remote").cpu()
    torch.remote.manual_seed(9)
    with torch.random.fork_rng(devices=[0], device_type="remote"):
        torch.rand(100, device="remote")
    assert_same(torch.rand(5, device="remote"), expected)


def test_seed_picks_another_seed_every_time() -> None:
    torch.remote.seed()
    first = torch.remote.initial_seed()
    torch.remote.seed_all()
    assert torch.remote.initial_seed() != first


def test_default_generators_read_like_a_tuple() -> None:
    generators = torch.remote.default_generators
    assert len(generators) == torch.remote.device_count()
    assert [each.device.index for each in generators] == list(range(len(generators)))
    assert generators[-1].device.index == len(generators) - 1
    assert isinstance(generators[:1], tuple)
    with pytest.raises(IndexError):
        generators[len(generators)]


def test_seeding_and_drawing_do_not_wait(sync_count: Callable[[Callable[[], object]], int]) -> None:
    def draw() -> None:
        torch.manual_seed(3)
        torch.rand(10, device="remote")

    assert sync_count(draw) == 0


def test_a_state_on_a_device_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="CPU byte tensor"):
        torch.remote.set_rng_state(torch.zeros(16, dtype=torch.uint8, device="remote"))
