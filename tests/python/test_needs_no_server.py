"""What computes nothing on the device starts no server, so that `connect()` gets `remote:0`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import assert_runs, run_python, serving

pytestmark = pytest.mark.slow

# Each group is one process; after every line it is checked.
CALLS = {
    "pinned memory": """
        torch.ones(2).pin_memory()
        torch.empty(2, pin_memory=True)
        torch.tensor([1], pin_memory=True)
        torch.zeros_like(torch.ones(2), pin_memory=True)
        torch.ones(2).untyped_storage().pin_memory()
        torch.ones(2).is_pinned()
        list(DataLoader(torch.arange(8), pin_memory=True))
        list(DataLoader(torch.arange(8), pin_memory=True, num_workers=1))
    """,
    "random numbers": """
        torch.manual_seed(1), torch.seed(), torch.initial_seed(), torch.get_rng_state()
        fork_rng().__enter__()
        forked()
        torch.remote.get_rng_state()
        torch.remote.set_rng_state(torch.remote.get_rng_state())
        torch.remote.set_rng_state_all(torch.remote.get_rng_state_all())
        torch.remote.seed_all(), torch.remote.initial_seed(), repr(torch.remote.default_generators)
        torch.Generator("remote").manual_seed(3)
        torch.remote.default_generators[0].clone_state()
    """,
    "checkpoints and autograd": """
        leaf().sin().sum().backward()
        checkpoint(torch.sin, leaf(), use_reentrant=False).sum().backward()
        checkpoint(torch.sin, leaf(), use_reentrant=True).sum().backward()
        torch.func.grad(lambda a: a.sin().sum())(torch.ones(2))
        torch.save(torch.ones(2), file := io.BytesIO()), file.seek(0), torch.load(file)
    """,
    "the accelerator": """
        torch.accelerator.is_available(), torch.accelerator.device_count()
        torch.accelerator.current_accelerator(), torch.accelerator.current_device_index()
        torch.accelerator.current_stream()
        torch.accelerator.set_device_index(0)
        torch.accelerator.device_index(0).__enter__()
        torch.accelerator.synchronize()
        torch.accelerator.empty_cache()
        torch.remote.is_available(), torch.remote.device_count(), torch.remote.current_device()
        torch.remote.set_device(0), torch.remote.current_stream(), torch.remote.synchronize()
        torch.Stream(device="remote"), torch.Event(device="remote")
        torch.get_device_module(), torch_remote.synchronize(), str(torch_remote.stats())
        Timer("torch.ones(1)", globals=globals()).timeit(1)
        profiled()
    """,
    "compiling": """
        torch.compile(torch.sin, backend="eager")(torch.ones(2))
        torch.compile(dropped, backend="eager")(torch.ones(2))
        torch.compile(dropped, backend="aot_eager")(leaf()).sum().backward()
        torch.compile(broken, backend="eager")(torch.ones(2))
        torch.export.export(torch.nn.ReLU(), (torch.ones(2),))
        torch.jit.trace(torch.sin, torch.ones(2))
    """,
}

BEFORE = """
import io, warnings
import torch, torch_remote
from torch.profiler import profile
from torch.random import fork_rng
from torch.utils.benchmark import Timer
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader
warnings.simplefilter("ignore")

def leaf():
    return torch.ones(2, requires_grad=True)

def forked():
    with fork_rng(), fork_rng(device_type="remote"):
        torch.rand(1)

def profiled():
    with profile() as result:
        torch.ones(2).sin()
    result.key_averages().table()

def dropped(a):
    return torch.nn.functional.dropout(a.sin())

def broken(a):
    b = a.sin()
    torch._dynamo.graph_break()
    return b + torch.rand(2)

def look(line):
    assert torch_remote.machines() == [], line
"""

AFTER = """
machine = torch_remote.connect(URL)
assert machine.devices[0] == torch.device("remote:0"), machine.devices
assert torch.ones(3, device="remote").sum().item() == 3
assert torch_remote.machines() == [machine]
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("server")
    with serving(f"unix://{folder}/s") as made:
        yield made


@pytest.mark.parametrize("group", CALLS)
def test_connect_gets_the_first_index_after(group: str, url: str) -> None:
    lines = textwrap.dedent(CALLS[group]).strip().splitlines()
    code = "".join(f"{line}\nlook({line!r})\n" for line in lines)
    done = run_python(f"{BEFORE}{code}URL = {url!r}\n{AFTER}")
    assert done.returncode == 0, done.stderr  # PyTorch's profiler prints to stderr


SEED = "import torch, torch_remote\nfrom torch.random import fork_rng\ntorch.manual_seed(3)\n"
DRAW = "print(torch.rand(4, device='remote').tolist())\n"
FORKS = {
    "nothing inside": "with fork_rng(): pass\n",
    "seeded inside": "with fork_rng(): torch.manual_seed(5)\n",
    "drawn from inside": "with fork_rng(): torch.rand(9, device='remote')\n",
    "seeded and drawn from inside": (
        "with fork_rng():\n    torch.manual_seed(5)\n    torch.rand(9, device='remote')\n"
    ),
    "one in another": "with fork_rng(), fork_rng(): torch.rand(9, device='remote')\n",
    "looked at": (
        "state = torch.remote.get_rng_state()\nassert state.numel() == state.clone().numel() > 0\n"
        "torch.rand(9, device='remote')\ntorch.remote.set_rng_state(state)\n"
    ),
    "state of a generator": (
        "g = torch.remote.default_generators[0]\nstate = g.clone_state().get_state()\n"
        "g.manual_seed(5)\ng.set_state(state)\n"
    ),
}


@pytest.mark.parametrize("fork", FORKS)
def test_a_state_taken_before_there_is_a_machine_restores_what_was_seeded(fork: str) -> None:
    assert assert_runs(SEED + FORKS[fork] + DRAW) == assert_runs(SEED + DRAW)


def test_a_state_that_nobody_seeded_gives_the_same_numbers_again_and_others_each_run() -> None:
    code = """
        import torch, torch_remote
        state = torch.remote.get_rng_state()
        first = torch.rand(4, device="remote").tolist()
        torch.remote.set_rng_state(state)
        assert torch.rand(4, device="remote").tolist() == first
        print(first)
    """
    assert assert_runs(code) != assert_runs(code)


STOPPED = """
import torch, torch_remote
with torch_remote.connect("local"):
    assert torch.ones(3, device="remote").sum().item() == 3
"""


@pytest.mark.parametrize(
    "use",
    [
        "torch.ones(2, device='remote')",
        "torch.ones(2).to('remote')",
        "torch.nn.Linear(2, 2, device='remote')",
        "torch.remote.get_device_properties()",
    ],
)
def test_after_the_last_machine_was_stopped_the_next_is_started_with_one_warning(use: str) -> None:
    done = run_python(f"{STOPPED}\n{use}\n{use}\nprint(torch_remote.machines())")
    assert done.returncode == 0 and "url='local'" in done.stdout
    (line,) = done.stderr.splitlines()
    assert " warning " in line and "starting the default machine" in line
    assert "stopped=local" in line


@pytest.mark.parametrize("start", ["torch.remote.init()", "torch_remote.connect('local')"])
def test_a_machine_that_is_asked_for_after_a_stop_needs_no_warning(start: str) -> None:
    assert_runs(f"""{STOPPED}
with torch.random.fork_rng():
    assert torch.remote.device_count() == 1
assert torch_remote.machines() == []
{start}
assert torch.ones(3, device="remote:0").sum().item() == 3
    """)


def test_a_connect_that_fails_after_a_stop_does_not_take_the_warning_away() -> None:
    done = run_python(
        """
        import torch, torch_remote
        with torch_remote.connect("local"):
            pass
        try:
            torch_remote.connect("unix:///nowhere/at/all")
        except torch_remote.ConnectionError:
            torch.ones(1, device="remote")
        """
    )
    assert done.returncode == 0 and "starting the default machine" in done.stderr
