"""Random numbers: a CPU server gives what the CPU gives for the same seed."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import DEVICE, assert_same
from torch import distributions as D
from torch.utils.checkpoint import checkpoint

F = torch.nn.functional

# Operators that take a generator: in place, and new tensors.
FILLS: dict[str, Callable[..., torch.Tensor]] = {
    "normal_": lambda x, **g: x.normal_(2, 3, **g),
    "uniform_": lambda x, **g: x.double().uniform_(-1, 1, **g),
    "bernoulli_": lambda x, **g: x.bernoulli_(0.3, **g),
    "bernoulli_ by tensor": lambda x, **g: x.bernoulli_(torch.full_like(x, 0.4), **g),
    "exponential_": lambda x, **g: x.exponential_(1.5, **g),
    "geometric_": lambda x, **g: x.geometric_(0.3, **g),
    "cauchy_": lambda x, **g: x.cauchy_(1, 2, **g),
    "log_normal_": lambda x, **g: x.log_normal_(0.5, 1, **g),
    "random_": lambda x, **g: x.random_(**g),
    "random_ to": lambda x, **g: x.long().random_(77, **g),
    "random_ from": lambda x, **g: x.int().random_(-5, 50, **g),
    "bernoulli": lambda x, **g: torch.bernoulli(torch.full_like(x, 0.3), **g),
    "bernoulli p": lambda x, **g: torch.bernoulli(x, 0.3, **g),
    "poisson": lambda x, **g: torch.poisson(torch.full_like(x, 4.5), **g),
    "binomial": lambda x, **g: torch.binomial(torch.full_like(x, 9), torch.full_like(x, 0.4), **g),
    "multinomial": lambda x, **g: torch.multinomial(x.abs() + 0.1, 5, **g),
    "multinomial again": lambda x, **g: torch.multinomial(x.abs() + 0.1, 50, True, **g),
    "normal of tensors": lambda x, **g: torch.normal(x, torch.full_like(x, 0.5), **g),
    "normal of a mean": lambda x, **g: torch.normal(x, 0.5, **g),
    "normal of a deviation": lambda x, **g: torch.normal(0.5, torch.full_like(x, 0.5), **g),
    "normal out": lambda x, **g: torch.normal(x, 1.0, out=torch.empty_like(x), **g),
    "rand": lambda x, **g: torch.rand(100, device=x.device, **g),
    "randn": lambda x, **g: torch.randn(33, 17, device=x.device, **g),
    "randn half": lambda x, **g: torch.randn(65, dtype=torch.half, device=x.device, **g),
    "randn complex": lambda x, **g: torch.randn(9, dtype=torch.cfloat, device=x.device, **g),
    "randint": lambda x, **g: torch.randint(-5, 1000, (100,), device=x.device, **g),
    "randint far": lambda x, **g: torch.randint(2**40, (9,), device=x.device, **g),
    "randperm": lambda x, **g: torch.randperm(50, device=x.device, **g),
    "randperm int": lambda x, **g: torch.randperm(50, dtype=torch.int32, device=x.device, **g),
    "normal sizes": lambda x, **g: torch.normal(1.0, 2.0, (40,), device=x.device, **g),
    "rrelu": lambda x, **g: torch.ops.aten.rrelu_with_noise(
        x, torch.empty_like(x), 0.1, 0.4, True, g.get("generator")
    ),
}
# Operators that draw from the device's own generator.
DRAWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rand_like": torch.rand_like,
    "randn_like": torch.randn_like,
    "randint_like": lambda x: torch.randint_like(x, 3, 99),
    "dropout": lambda x: F.dropout(x, 0.4),
    "native_dropout": lambda x: torch.native_dropout(x, 0.4, True)[0],
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.4, True),
    "feature_dropout": lambda x: torch.feature_dropout(x[None], 0.4, True),
    "dropout2d": lambda x: F.dropout2d(x[None], 0.4),
    "feature_alpha_dropout": lambda x: F.feature_alpha_dropout(x[None], 0.4, True),
    "rrelu": lambda x: F.rrelu(x, 0.1, 0.4, True),
    "gumbel_softmax": lambda x: F.gumbel_softmax(x, hard=True),
    "fractional_max_pool2d": lambda x: F.fractional_max_pool2d(x[None, None], 2, output_size=3),
    "attention": lambda x: F.scaled_dot_product_attention(*x.view(3, 1, 4, 10), dropout_p=0.4),
    "init.xavier": lambda x: torch.nn.init.xavier_uniform_(x),
    "init.kaiming": lambda x: torch.nn.init.kaiming_normal_(x),
    "init.orthogonal": lambda x: torch.nn.init.orthogonal_(x),
    "init.trunc_normal": lambda x: torch.nn.init.trunc_normal_(x),
    "Normal": lambda x: D.Normal(x, 1.0).sample(),
    "Gamma": lambda x: D.Gamma(x.abs() + 1, x.abs() + 1).rsample(),
    "Beta": lambda x: D.Beta(x.abs() + 1, x.abs() + 1).sample(),
    "Dirichlet": lambda x: D.Dirichlet(x.abs() + 1).sample(),
    "Categorical": lambda x: D.Categorical(logits=x).sample((3,)),
    "OneHotCategorical": lambda x: D.OneHotCategorical(logits=x).sample(),
    "Bernoulli": lambda x: D.Bernoulli(logits=x).sample(),
    "Binomial": lambda x: D.Binomial(7, logits=x).sample(),
    "Geometric": lambda x: D.Geometric(logits=x).sample(),
    "Poisson": lambda x: D.Poisson(x.abs()).sample(),
    "Laplace": lambda x: D.Laplace(x, 1.0).sample(),
    "Gumbel": lambda x: D.Gumbel(x, 1.0).sample(),
    "StudentT": lambda x: D.StudentT(x.abs() + 3).sample(),
    "VonMises": lambda x: D.VonMises(x, x.abs() + 1).sample(),
    "MultivariateNormal": lambda x: D.MultivariateNormal(
        x[0], torch.eye(12, device=x.device)
    ).sample(),
    "Wishart": lambda x: D.Wishart(7.0, torch.eye(5, device=x.device)).sample(),
}


def start(device: str) -> torch.Tensor:
    return torch.linspace(-1, 1, 120).view(10, 12).to(device)


@pytest.mark.parametrize("name", FILLS)
def test_the_same_seed_gives_the_cpus_numbers(name: str) -> None:
    torch.manual_seed(123)
    expected = [FILLS[name](start("cpu")) for _ in range(2)]
    torch.manual_seed(123)
    assert_same([FILLS[name](start(DEVICE)) for _ in range(2)], expected)


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.filterwarnings("ignore")
def test_a_draw_without_a_generator_gives_the_cpus_numbers(name: str) -> None:
    torch.manual_seed(123)
    expected = [DRAWS[name](start("cpu")) for _ in range(2)]
    torch.manual_seed(123)
    assert_same([DRAWS[name](start(DEVICE)) for _ in range(2)], expected)


@pytest.mark.parametrize("name", FILLS)
def test_a_generator_of_ones_own_gives_the_cpus_numbers_and_can_be_put_back(name: str) -> None:
    ours, cpus = torch.Generator(DEVICE).manual_seed(5), torch.Generator().manual_seed(5)
    FILLS[name](start(DEVICE), generator=ours)
    FILLS[name](start("cpu"), generator=cpus)
    state = ours.get_state()
    expected = FILLS[name](start("cpu"), generator=cpus)
    assert_same(FILLS[name](start(DEVICE), generator=ours), expected)
    ours.set_state(state)
    assert_same(FILLS[name](start(DEVICE), generator=ours), expected)
    assert_same(ours.get_state(), cpus.get_state())


@pytest.mark.parametrize("name", FILLS)
@pytest.mark.parametrize(("tensor", "generator"), [("cpu", "remote"), ("remote", "cpu")])
def test_a_generator_of_another_device_is_refused_in_cudas_words(
    name: str, tensor: str, generator: str
) -> None:
    words = f"^Expected a '{tensor}' device type for generator but found '{generator}'$"
    with pytest.raises(RuntimeError, match=words):
        FILLS[name](torch.ones(7, device=tensor), generator=torch.Generator(generator))


def test_a_generator_does_not_take_a_number_of_the_cpu_along() -> None:
    for draw in (torch.bernoulli, torch.poisson, torch.Tensor.uniform_):
        with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator"):
            draw(torch.tensor(0.5), generator=torch.Generator("remote"))


def test_a_sampler_with_a_remote_generator_says_what_it_expects() -> None:
    sampler = torch.utils.data.RandomSampler(range(5), generator=torch.Generator("remote"))
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator"):
        list(sampler)


def test_a_generator_knows_its_device_and_seed() -> None:
    generator = torch.Generator(DEVICE).manual_seed(5)
    assert generator.device.type == torch.device(DEVICE).type
    assert generator.initial_seed() == 5


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


# --- states

SyncCount = Callable[[Callable[[], object]], int]


def test_a_state_is_the_cpus_and_is_fetched_when_it_is_looked_at(sync_count: SyncCount) -> None:
    torch.manual_seed(3)
    torch.randn(7)
    torch.randn(7, device="remote")
    states = []
    assert sync_count(lambda: states.append(torch.remote.get_rng_state())) == 0
    torch.randn(7, device="remote")  # the state is that of the moment it was taken
    assert type(states[0]) is torch.Tensor
    assert (states[0].device.type, states[0].dtype) == ("cpu", torch.uint8)
    assert sync_count(lambda: states[0].shape) == 0
    assert sync_count(lambda: torch.equal(states[0], torch.get_rng_state())) == 1
    assert torch.equal(states[0], torch.get_rng_state())
    assert sync_count(lambda: states[0].tolist()) == 0  # the bytes are here now


LOOKS: dict[str, Callable[[torch.Tensor], bytes]] = {
    "numpy": lambda state: state.numpy().tobytes(),
    "asarray": lambda state: np.asarray(state).tobytes(),
    "tolist": lambda state: bytes(state.tolist()),
    "clone": lambda state: state.clone().numpy().tobytes(),
    "detach": lambda state: state.detach().numpy().tobytes(),
    "view": lambda state: state.view(torch.int64).numpy().tobytes(),
    "slice": lambda state: state[:8].numpy().tobytes() + state[8:].numpy().tobytes(),
    "pickle": lambda state: pickle.loads(pickle.dumps(state)).numpy().tobytes(),
    "storage": lambda state: bytes(state.untyped_storage()),
    "data": lambda state: state.data.numpy().tobytes(),
    "dlpack": lambda state: torch.from_dlpack(state).numpy().tobytes(),
    "remote": lambda state: state.to("remote").cpu().numpy().tobytes(),
    "another generator": lambda state: (
        torch.Generator().set_state(state).get_state().numpy().tobytes()
    ),
}


@pytest.mark.parametrize("name", LOOKS)
def test_however_a_state_is_looked_at_its_bytes_are_there(name: str) -> None:
    torch.manual_seed(31)
    assert LOOKS[name](torch.remote.get_rng_state()) == torch.get_rng_state().numpy().tobytes()


def test_a_state_survives_torch_save(tmp_path: Path) -> None:
    torch.manual_seed(31)
    torch.save(torch.remote.get_rng_state(), tmp_path / "state")
    expected = torch.rand(4, device="remote").cpu()
    torch.remote.set_rng_state(torch.load(tmp_path / "state"))
    assert_same(torch.rand(4, device="remote"), expected)


def test_a_state_that_was_changed_is_put_back_as_changed() -> None:
    torch.manual_seed(31)
    state, other = torch.remote.get_rng_state(), torch.Generator().manual_seed(8)
    state.copy_(other.get_state())
    torch.remote.set_rng_state(state)
    assert_same(torch.rand(4, device="remote"), torch.rand(4, generator=other))


def test_a_state_of_the_cpu_may_be_put_into_the_device() -> None:
    torch.manual_seed(31)
    torch.rand(3)
    torch.remote.set_rng_state(torch.get_rng_state())
    assert torch.remote.initial_seed() == 31
    assert_same(torch.rand(4, device="remote"), torch.rand(4))


def test_the_seed_comes_back_with_the_state() -> None:
    for keep in (lambda state: state, torch.clone):
        torch.remote.manual_seed(5)
        state = keep(torch.remote.get_rng_state())
        torch.remote.manual_seed(9)
        torch.remote.set_rng_state(state)
        assert torch.remote.initial_seed() == 5


def test_a_state_of_the_wrong_size_is_refused_in_the_cpus_words() -> None:
    wrong = torch.zeros(10, dtype=torch.uint8)
    with pytest.raises(RuntimeError) as local:
        torch.set_rng_state(wrong)
    with pytest.raises(RuntimeError) as remote:
        torch.remote.set_rng_state(wrong)
    assert str(remote.value) == str(local.value)


def test_a_generator_is_cloned_without_a_wait(sync_count: SyncCount) -> None:
    generator, copies = torch.Generator("remote").manual_seed(5), []
    torch.rand(3, device="remote", generator=generator)
    assert sync_count(lambda: copies.append(generator.clone_state())) == 0
    assert_same(copies[0].get_state(), generator.get_state())
    assert copies[0].initial_seed() == 5


def test_states_that_are_dropped_are_freed_on_the_server() -> None:
    # The server's limit is 65,536 generators; it ends a session that wants more.
    for _ in range(70):
        states = [torch.remote.get_rng_state() for _ in range(1000)]
        del states
    assert torch.rand(2, device="remote").cpu().shape == (2,)


def test_states_that_are_kept_never_meet_the_servers_limit(sync_count: SyncCount) -> None:
    states: list[torch.Tensor] = []

    def keep(number: int) -> None:
        states.extend(torch.remote.get_rng_state() for _ in range(number))

    assert sync_count(lambda: keep(32_000)) == 0
    assert sync_count(lambda: keep(1_000)) > 0  # beyond the limit some are fetched at once
    states.clear()
    assert torch.rand(2, device="remote").cpu().shape == (2,)


# --- fork_rng and checkpoint


def test_fork_rng_does_not_wait(sync_count: SyncCount) -> None:
    def fork() -> None:
        for devices in ([0], None):
            with torch.random.fork_rng(devices, device_type="remote"):
                torch.rand(9, device="remote")

    torch.rand(1, device="remote").cpu()
    assert sync_count(fork) == 0


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpoint_repeats_its_dropout_without_a_wait(
    use_reentrant: bool, sync_count: SyncCount
) -> None:
    torch.manual_seed(4)
    block = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.GELU())
    ours = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.GELU())
    ours.load_state_dict(block.state_dict())
    ours.to("remote")

    def step(module: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
        torch.manual_seed(11)
        for _ in range(3):
            x = checkpoint(module, x, use_reentrant=use_reentrant, preserve_rng_state=True)
        x.sum().backward()
        after = torch.rand(3, device=x.device)
        gradients = [parameter.grad for parameter in module.parameters()]
        assert all(gradient is not None for gradient in gradients)
        return [x.detach(), after, *gradients]

    x = torch.randn(5, 8)
    there, found = x.to("remote").requires_grad_(), []
    assert sync_count(lambda: found.append(step(ours, there))) == 0
    assert_same(found[0], step(block, x.requires_grad_()))


def test_generators_are_copied_and_pickled() -> None:
    generator = torch.Generator("remote").manual_seed(5)
    torch.rand(3, generator=generator, device="remote")
    copies = [copy.deepcopy(generator), pickle.loads(pickle.dumps(generator))]
    expected = torch.rand(7, generator=generator, device="remote").tolist()
    for other in copies:
        assert (other.device, other.initial_seed()) == (generator.device, 5)
        assert torch.rand(7, generator=other, device="remote").tolist() == expected
