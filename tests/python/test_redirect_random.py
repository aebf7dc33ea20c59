"""Random numbers under the redirect: a generator decides the device, a state is of what draws."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import assert_runs
from redirecting import QUIET, TorchDevice, redirected
from torch.utils.checkpoint import checkpoint

import torch_remote

DEVICES: list[Any] = [None, "cpu", "cuda", "mps"]


def cpu_generator() -> torch.Generator:
    return torch.Generator("cpu").manual_seed(3)


FACTORIES: dict[str, Callable[..., torch.Tensor]] = {
    "rand": lambda **more: torch.rand(3, **more),
    "randn": lambda **more: torch.randn(3, **more),
    "randint": lambda **more: torch.randint(9, (3,), **more),
    "randperm": lambda **more: torch.randperm(5, **more),
    "normal": lambda **more: torch.normal(0.0, 1.0, (3,), **more),
}
DRAWS: dict[str, Callable[[torch.Tensor, Any], torch.Tensor]] = {
    "normal_": lambda x, g: x.normal_(generator=g),
    "uniform_": lambda x, g: x.uniform_(-1, 1, generator=g),
    "random_": lambda x, g: x.random_(9, generator=g),
    "exponential_": lambda x, g: x.exponential_(generator=g),
    "bernoulli_": lambda x, g: x.bernoulli_(x.detach(), generator=g),
    "bernoulli": lambda x, g: torch.bernoulli(x, generator=g),
    "method": lambda x, g: x.multinomial(2, generator=g),
    "multinomial": lambda x, g: torch.multinomial(x, 2, generator=g),
    "poisson": lambda x, g: torch.poisson(x, generator=g),
    "poisson by place": lambda x, g: torch.poisson(x, g),
    "binomial by place": lambda x, g: torch.binomial(x * 0 + 9, x, g),
    "rrelu by place": lambda x, g: torch.rrelu(x - 1, 0.1, 0.9, True, g),
    "normal of tensors": lambda x, g: torch.normal(x, x, generator=g),
    "gamma": lambda x, g: torch._standard_gamma(x, generator=g),
    "dirichlet by place": lambda x, g: torch._sample_dirichlet(x, g),
    "init": lambda x, g: torch.nn.init.xavier_uniform_(x, generator=g),
    "trunc_normal_": lambda x, g: torch.nn.init.trunc_normal_(x, generator=g),
}


def weights() -> torch.Tensor:
    return torch.linspace(0.1, 0.9, 6).reshape(2, 3)


@pytest.mark.parametrize("name", FACTORIES)
def test_a_generator_decides_the_device_of_a_factory(name: str) -> None:
    make = FACTORIES[name]
    expected = make(generator=cpu_generator())
    with redirected("remote") as used:
        for device in [*DEVICES, torch.device("cpu"), torch.device("cuda")]:
            made = make(generator=cpu_generator(), device=device)
            assert made.device.type == "cpu", device
            assert torch.equal(made, expected)
            there = make(generator=torch.Generator("cuda").manual_seed(3), device=device)
            assert str(there.device) == used, device
            assert there.tolist() == expected.tolist()
        made = make(generator=cpu_generator(), device="cpu:-1")
        assert (made.device.type, bool(TorchDevice.cpu_override)) == ("cpu", True)


@pytest.mark.parametrize("name", DRAWS)
def test_a_generator_of_the_cpu_draws_for_tensors_of_the_accelerator(name: str) -> None:
    expected = DRAWS[name](weights(), cpu_generator())
    with redirected("remote") as used:
        there = weights()
        made = DRAWS[name](there, cpu_generator())
        assert (str(there.device), str(made.device)) == (used, used)
        assert made.tolist() == expected.tolist()
        assert (made is there) == name.endswith("_") or name == "init"
        turned = weights().t()
        turned.normal_(generator=cpu_generator())
    assert torch.equal(turned.cpu(), weights().t().normal_(generator=cpu_generator()))


@pytest.mark.parametrize("generator", [cpu_generator, lambda: None])
def test_a_sampler_draws_by_its_generator(generator: Callable[[], Any]) -> None:
    def draw(weights: Any) -> list[int]:
        torch.manual_seed(5)
        return list(torch.utils.data.WeightedRandomSampler(weights, 4, generator=generator()))

    values = weights().flatten().tolist()
    expected = draw(torch.tensor(values))
    with redirected("remote"):
        assert draw(torch.tensor(values)) == draw(values) == expected
    with redirected("remote", "foreign"):
        assert draw(torch.tensor(values)) == expected


INTO: dict[str, Callable[..., torch.Tensor]] = {
    "rand": lambda x, **more: torch.rand(2, 3, **more),
    "randn": lambda x, **more: torch.randn(2, 3, **more),
    "randint": lambda x, **more: torch.randint(9, (2, 3), **more),
    "randperm": lambda x, **more: torch.randperm(6, **more),
    "normal": lambda x, **more: torch.normal(0.0, 1.0, (2, 3), **more),
    "normal of tensors": lambda x, **more: torch.normal(x, x, **more),
    "bernoulli": lambda x, **more: torch.bernoulli(x, **more),
    "multinomial": lambda x, **more: torch.multinomial(x, 2, **more),
}


@pytest.mark.parametrize("name", INTO)
def test_a_generator_of_the_cpu_draws_into_out(name: str) -> None:
    expected = INTO[name](weights(), generator=cpu_generator())
    strided = torch.empty(40, 80, dtype=torch.float64)[:, ::2].normal_(generator=cpu_generator())
    with redirected("remote") as used:
        filled = torch.zeros(expected.shape, dtype=expected.dtype)
        for out in (filled, torch.empty(0, dtype=expected.dtype)):
            made = INTO[name](weights(), generator=cpu_generator(), out=out)
            assert made is out and str(out.device) == used
            assert out.tolist() == expected.tolist()
        host = torch.from_numpy(torch.zeros(expected.shape, dtype=expected.dtype).numpy())
        assert INTO[name](weights(), generator=cpu_generator(), out=host) is host
        assert (host.device.type, host.tolist()) == ("cpu", expected.tolist())
        there = torch.empty(40, 80, dtype=torch.float64)[:, ::2]
        assert torch.randn(40, 40, generator=cpu_generator(), out=there, dtype=there.dtype) is there
        assert there.tolist() == strided.tolist()
        with pytest.raises(RuntimeError, match="require grad"):
            torch.randn(3, generator=cpu_generator(), out=torch.ones(3, requires_grad=True))


@pytest.mark.parametrize("shape", [(), (2, 2)], ids=str)
def test_out_gets_the_shape_that_is_drawn(remote: str, shape: tuple[int, ...]) -> None:
    drawn = torch.rand(shape, generator=cpu_generator()).tolist()
    whole = torch.randint(9, shape, generator=cpu_generator()).tolist()
    out = torch.empty(3, device="cuda")
    assert torch.rand(shape, generator=cpu_generator(), out=out) is out
    assert (str(out.device), out.shape, out.tolist()) == (remote, shape, drawn)
    out = torch.empty(3, device="cuda", dtype=torch.int64)
    assert torch.randint(9, shape, generator=cpu_generator(), out=out) is out
    assert (str(out.device), out.shape, out.tolist()) == (remote, shape, whole)


def load_saved(generator: torch.Generator) -> Any:
    file = io.BytesIO()
    torch.save(generator, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda generator: pickle.loads(pickle.dumps(generator)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "save": load_saved,
}


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("policy", ["full", "foreign"])
def test_a_copied_generator_is_of_the_same_device_and_state(policy: str, name: str) -> None:
    with redirected("remote", policy) as used:
        for device, expected in (("cpu", "cpu"), ("cuda", used)):
            generator = torch.Generator(device).manual_seed(3)
            torch.rand(3, generator=generator, device=generator.device)
            copied = COPIES[name](generator)
            assert (str(copied.device), copied.initial_seed()) == (expected, 3)
            assert torch.equal(copied.get_state(), generator.get_state())
        copied = COPIES[name](torch.default_generator)
        assert copied.device.type == "cpu"
        copied.set_state(torch.get_rng_state())
        state = copied.get_state()
        assert torch.equal(COPIES[name](torch.default_generator).get_state(), state)


def test_pickled_generators_of_the_cpu_cross_between_torch_with_and_without_the_redirect() -> None:
    generator: Any = cpu_generator()
    plain = pickle.dumps(generator)
    with redirected("remote"):
        loaded = pickle.loads(plain)
        redirect_made = pickle.dumps(generator)
        there: Any = torch.cuda.default_generators[0]
        there.__setstate__(generator.__reduce__()[2])
        assert there.device.type == "remote"
    code = f"""
import pickle, sys
loaded = pickle.loads({redirect_made!r})
print(loaded.device, loaded.initial_seed(), "TorchDevice" in sys.modules)
"""
    assert assert_runs(code) == "cpu 3 False"
    for copied in (loaded, pickle.loads(redirect_made)):
        assert copied.device.type == "cpu"
        assert torch.equal(copied.get_state(), generator.get_state())


def test_a_generator_of_a_device_object_is_of_that_device() -> None:
    with redirected("remote") as used:
        assert torch.Generator("cpu").device.type == "cpu"
        assert str(torch.device("cpu")) == used
        assert str(torch.Generator(torch.device("cpu")).device) == used


def test_what_is_like_a_tensor_follows_it_and_is_drawn_by_the_generator() -> None:
    try:
        expected = torch.randn_like(weights(), generator=cpu_generator())
    except TypeError:
        pytest.skip("this torch takes no generator here")
    with redirected("remote") as used:
        for device in DEVICES:
            made = torch.randn_like(weights(), generator=cpu_generator(), device=device)
            assert str(made.device) == used
            assert made.tolist() == expected.tolist()


@pytest.mark.parametrize("policy", ["full", "foreign"])
def test_wrong_generators_are_refused_as_torch_does(policy: str) -> None:
    with redirected("remote", policy):
        there = torch.Generator("cuda")
        host = torch.from_numpy(weights().numpy())
        with pytest.raises(RuntimeError, match="generator"):
            host.normal_(generator=there)
        with pytest.raises(TypeError):
            torch.rand(2, generator=3)  # type: ignore[call-overload]
        if policy == "foreign":  # as with CUDA
            for device in ("cuda", torch.device("cuda")):
                with pytest.raises(RuntimeError, match="generator"):
                    torch.rand(2, generator=cpu_generator(), device=device)
            with pytest.raises(RuntimeError, match="generator"):
                torch.rand(2, generator=there, device="cpu")
            with pytest.raises(RuntimeError, match="generator"):
                torch.ones(2, device="cuda").normal_(generator=cpu_generator())


@pytest.mark.parametrize("module", ["torch.testing.x", "torch.serialization.x"])
def test_callers_of_another_policy_draw_as_torch_does(remote: str, module: str) -> None:
    scope: dict[str, Any] = {"__name__": module, "torch": torch}
    draw = "torch.rand(2, generator=generator, device=device)"
    there = torch.Generator("cuda")
    for generator, device in ((there, "cpu"), (cpu_generator(), remote)):
        scope.update(generator=generator, device=device)
        with pytest.raises(RuntimeError, match="generator"):
            exec(draw, scope)
        exec(draw, {**scope, "__name__": "mine"})
    if module == "torch.serialization.x":  # nothing is redirected there
        with pytest.raises(RuntimeError, match="generator"):
            exec("torch.rand(2, generator=there)", {**scope, "there": there})


# What draws numbers, under the full policy: here and there.
def draw_all() -> list[Any]:
    host = torch.from_numpy(weights().numpy())
    return [
        torch.rand(3).tolist(),
        torch.randn(3, device="cpu").tolist(),
        torch.rand(3, device="cuda").tolist(),
        torch.ones(3).normal_().tolist(),
        torch.randperm(5).tolist(),
        torch.multinomial(weights(), 2).tolist(),
        torch.nn.functional.dropout(weights()).tolist(),
        host.normal_().tolist(),
        [int(each) for each in torch.utils.data.RandomSampler(range(8))],
    ]


def restore_by_set_rng_state() -> Callable[[], object]:
    state = torch.get_rng_state()
    assert state.device.type == "cpu" and state.dtype == torch.uint8
    return lambda: torch.set_rng_state(state)


def restore_by_generator() -> Callable[[], object]:
    state = torch.default_generator.get_state().clone()
    return lambda: torch.default_generator.set_state(state)


def restore_by_file() -> Callable[[], object]:
    file = io.BytesIO()
    torch.save(torch.random.get_rng_state(), file)
    file.seek(0)
    state = torch.load(file)
    return lambda: torch.random.set_rng_state(state)


def restore_by_fork() -> Callable[[], object]:
    stack = contextlib.ExitStack()
    stack.enter_context(torch.random.fork_rng(devices=[]))
    return stack.close


def restore_by_default_generator() -> Callable[[], object]:
    torch.default_generator.manual_seed(5)
    return lambda: torch.default_generator.manual_seed(5)


def restore_by_seed() -> Callable[[], object]:
    seed = torch.seed()
    assert torch.initial_seed() == seed == torch.default_generator.initial_seed()
    return lambda: torch.manual_seed(seed)


def restore_by_seed_of_the_generator() -> Callable[[], object]:
    seed = torch.default_generator.seed()
    return lambda: torch.default_generator.manual_seed(seed)


WAYS = [
    restore_by_set_rng_state,
    restore_by_generator,
    restore_by_file,
    restore_by_fork,
    restore_by_default_generator,
    restore_by_seed,
    restore_by_seed_of_the_generator,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__.removeprefix("restore_by_"))
def test_a_restored_state_draws_the_same_numbers(used: str, way: Any) -> None:
    restore = way()
    drawn = draw_all()
    restore()
    again = draw_all()
    assert again == drawn
    assert draw_all() != drawn


def test_a_seed_of_the_default_generator_gives_the_numbers_of_the_cpu() -> None:
    torch.default_generator.manual_seed(7)
    expected = torch.rand(4).tolist()
    with redirected("remote"):
        torch.default_generator.manual_seed(7)
        assert torch.rand(4).tolist() == expected
        assert torch.initial_seed() == 7
        torch.cuda.manual_seed(8)
        assert torch.initial_seed() == 8  # of what draws
        with TorchDevice.cpu_override():
            assert torch.initial_seed() == 7


def test_a_clone_of_the_default_generator_draws_the_programs_numbers(used: str) -> None:
    torch.manual_seed(4)
    torch.rand(3)
    clone = torch.default_generator.clone_state()
    drawn = torch.rand(3, generator=clone)
    assert str(drawn.device) == used
    assert drawn.tolist() == torch.rand(3).tolist()
    assert clone.initial_seed() == 4
    with TorchDevice.cpu_override():
        assert torch.default_generator.clone_state().device.type == "cpu"


def test_a_state_that_was_taken_without_the_redirect_is_used() -> None:
    state = torch.get_rng_state()
    expected = torch.rand(4).tolist()
    with redirected("remote"):  # whose server has a generator of the same kind
        torch.set_rng_state(state)
        assert torch.rand(4).tolist() == expected
        with TorchDevice.cpu_override():
            assert torch.get_rng_state().numel() == state.numel()
            torch.set_rng_state(state)
            assert torch.rand(4).tolist() == expected


def test_another_kind_of_state_is_told(
    remote: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = torch.Generator().get_state()
    target = TorchDevice._masquerade.current_target()

    def refuse(new_state: torch.Tensor, device: Any = None) -> None:
        raise RuntimeError("RNG state is wrong size")

    monkeypatch.setattr(target, "set_rng_state", refuse)
    monkeypatch.setattr(TorchDevice._log, "_warned", set())
    monkeypatch.setattr(TorchDevice.TDLogger.logger, "propagate", True)
    TorchDevice.set_level("WARNING")
    try:
        torch.set_rng_state(state)
    finally:
        TorchDevice.set_level("ERROR")
    assert "restores the CPU's generator only" in caplog.text
    with pytest.raises(RuntimeError, match="wrong size"):
        torch.set_rng_state(torch.get_rng_state())


@pytest.mark.parametrize("policy", ["full", "foreign"])
def test_states_of_a_wrong_size_are_refused_as_torch_does(policy: str) -> None:
    plain = torch.Generator().get_state()
    wrong = [torch.cat([plain, plain[:1].expand(count)]) for count in (1, 16, plain.numel())]
    with redirected("remote", policy):
        both = torch.get_rng_state()
        if policy == "full":
            wrong += [both[:-1], torch.cat([both, both[-1:]]), both[: plain.numel() + 12]]
        for state in wrong:
            for generator in (torch.default_generator, torch.Generator()):
                with pytest.raises(RuntimeError, match="size"):
                    generator.set_state(state)
        torch.set_rng_state(both)


def test_other_generators_take_the_state_of_the_default_one(remote: str) -> None:
    generator = torch.Generator()
    for read in (False, True):
        state = torch.get_rng_state()
        generator.set_state(state.clone() if read else state)
        expected = torch.rand(3, generator=torch.default_generator).tolist()
        assert torch.rand(3, generator=generator).tolist() == expected


def test_a_state_that_was_not_read_can_be_given_as_data(remote: str) -> None:
    state = torch.get_rng_state()
    expected = torch.get_rng_state().clone()
    taken = torch.from_numpy(torch.zeros(3, dtype=torch.uint8).numpy())
    taken.data = state
    assert taken.tolist() == expected.tolist()
    plain = torch.Generator().manual_seed(3).get_state()
    state = torch.get_rng_state()
    state.data = plain
    assert torch.equal(state, plain)
    torch.set_rng_state(state)
    assert torch.rand(3).tolist() == torch.rand(3, generator=cpu_generator()).tolist()


def test_a_state_refuses_another_size_and_its_clone_takes_it(remote: str) -> None:
    state = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="customized tensor"):
        state.resize_(3)
    torch.set_rng_state(state)
    assert torch.equal(state.clone().resize_(3), state[:3])


def test_under_foreign_the_default_generator_is_the_cpus() -> None:
    size = torch.get_rng_state().numel()
    with redirected("remote", "foreign"):
        assert torch.get_rng_state().numel() == size
        torch.cuda.manual_seed(1)
        expected = torch.rand(3, device="cuda").tolist()
        torch.cuda.manual_seed(1)
        torch.default_generator.manual_seed(9)
        torch.set_rng_state(torch.get_rng_state())
        assert torch.rand(3, device="cuda").tolist() == expected
        assert torch.initial_seed() == 9


def test_states_are_not_fetched_by_who_only_puts_them_back(remote: str) -> None:
    x = torch.ones(4, 4, device="cuda", requires_grad=True)
    x.sum().item()
    with torch_remote.count() as counted:
        torch.set_rng_state(torch.get_rng_state())
        with torch.random.fork_rng(devices=[]):
            torch.rand(2)
        with torch.random.fork_rng():
            torch.rand(2)
        checkpoint(torch.nn.functional.dropout, x, use_reentrant=False).sum().backward()
    assert counted.syncs == 0


@pytest.mark.parametrize("arguments", [{}, {"devices": [0]}, {"device_type": "cuda"}], ids=str)
def test_fork_rng_restores_the_generators(used: str, arguments: dict[str, Any]) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3).tolist(), torch.rand(3, device="cuda").tolist()
    torch.manual_seed(5)
    with torch.random.fork_rng(**arguments):
        torch.manual_seed(6)
        torch.rand(3, device="cuda")
    assert (torch.rand(3).tolist(), torch.rand(3, device="cuda").tolist()) == expected
    assert torch.get_device_module("cuda") is torch.get_device_module(used)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("policy", ["full", "foreign"])
def test_a_checkpoint_draws_the_same_mask_twice(policy: str, reentrant: bool) -> None:
    with redirected("remote", policy):
        x = torch.ones(64, device="cuda", requires_grad=True)
        kept = checkpoint(
            lambda value: torch.nn.functional.dropout(value) * torch.rand(64, device="cuda"),
            x,
            use_reentrant=reentrant,
        )
        kept.sum().backward()
        assert x.grad is not None and torch.allclose(x.grad, kept.detach())


def test_an_unseeded_program_can_be_repeated_and_its_workers_draw() -> None:
    code = """
import torch, TorchDevice, torch_remote

class Noise(torch.utils.data.Dataset):
    def __len__(self): return 2
    def __getitem__(self, index): return torch.rand(1).tolist(), torch.get_rng_state().numel()

seed = torch.initial_seed()
drawn = torch.rand(3).tolist()
torch.manual_seed(seed)
print(torch.rand(3).tolist() == drawn, torch.initial_seed() == seed)
loader = torch.utils.data.DataLoader(Noise(), batch_size=None, num_workers=1)
state = torch.get_rng_state()
first = list(loader)
torch.set_rng_state(state)
print(list(loader) == first, {size for _, size in first} == {torch.Generator().get_state().numel()})
"""
    assert assert_runs(code, **QUIET).splitlines() == ["True True", "True True"]
