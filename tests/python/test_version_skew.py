"""Client and server with different versions of torch: operators and arguments match by name.

The server plays the other version (`serve --schemas`): it has the operators recorded of it.
"""

from __future__ import annotations

import gzip
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from helpers import assert_same, run_python, serving
from torch import nn

import torch_remote

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parents[1] / "golden"
HERE = ".".join(torch.__version__.split(".")[:2])
OTHER = {"2.11": "2.13", "2.13": "2.11"}.get(HERE, "2.11")
Counter = Callable[[Callable[[], object]], int]


def recorded(minor: str) -> list[str]:
    """The lines of a golden file; the first is the version."""
    return gzip.decompress((GOLDEN / f"schemas-{minor}.txt.gz").read_bytes()).decode().splitlines()


def name_of(schema: str) -> str:
    return schema.partition("(")[0]


@contextmanager
def playing(lines: list[str], folder: Path) -> Iterator[torch.device]:
    """The device of a server that has these operators."""
    file = folder / "schemas.txt"
    file.write_text("\n".join(lines) + "\n")
    with (
        serving(f"unix://{folder}/socket", "--schemas", str(file)) as url,
        torch_remote.connect(url) as machine,
    ):
        yield machine.devices[0]


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[torch.device]:
    """A device of a server of the other version."""
    with playing(recorded(OTHER), tmp_path_factory.mktemp("other")) as device:
        yield device


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(x).mean(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, 8, num_layers=2, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0][:, -1])


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(80, 32), nn.GELU(), nn.Dropout(0.2), nn.Linear(32, 4)
    ),
    "conv": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 5)),
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 4),
    ),
    "transformer": Attention,
    "lstm": Recurrent,
}


def train(model: nn.Module, device: torch.device | str) -> list[torch.Tensor]:
    """Losses and parameters of three steps, with dropout drawn on the device."""
    torch.manual_seed(3)
    x, wanted = torch.randn(6, 5, 16).to(device), torch.randint(4, (6,)).to(device)
    model = model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(5)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), wanted)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
    return [tensor.detach().cpu() for tensor in [*losses, *model.parameters()]]


@pytest.mark.parametrize("name", MODELS)
def test_training_equals_the_cpu(name: str, device: torch.device) -> None:
    torch.manual_seed(1)
    model = MODELS[name]()
    torch.manual_seed(1)
    same = MODELS[name]()
    assert_same(train(model, device), train(same, "cpu"))


def test_the_server_says_which_version_it_has(device: torch.device) -> None:
    status = next(m for m in torch_remote.machines() if device in m.devices).status()
    assert status["torch_version"] == recorded(OTHER)[0].removeprefix("# torch ")


def test_the_recorded_operators_of_this_version_are_still_the_true_ones() -> None:
    if HERE not in ("2.11", "2.13"):
        pytest.skip(f"no schemas of torch {HERE} are recorded")
    names = {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")}
    lines = recorded(HERE)[1:]
    assert {name_of(line) for line in lines} == names
    for line in lines:
        name, _, overload = name_of(line).partition(".")
        assert str(torch._C._get_schema(name, overload)) == line


def example(argument: torch.Argument, device: torch.device) -> object:
    """Some value of the argument's type; the call is refused before it is read."""
    values = {
        "Tensor": lambda: torch.ones(2, 2, device=device),
        "List[Tensor]": lambda: [torch.ones(2, 2, device=device)],
        "int": lambda: 1,
        "float": lambda: 1.0,
        "bool": lambda: False,
        "List[int]": lambda: [2, 2],
    }
    return values[str(argument.type)]()


def sent_operators_that_the_server_lacks() -> list[str]:
    """Operators that this version sends whole and the other lacks."""
    there = {name_of(line) for line in recorded(OTHER)[1:]}
    facts = torch_remote._C.operator_facts()
    return [name for name, route, *_ in facts if route == "sent" and name not in there]


@pytest.mark.parametrize("name", sent_operators_that_the_server_lacks())
def test_an_operator_that_the_server_lacks_is_an_error_at_the_call(
    name: str, device: torch.device
) -> None:
    base, _, overload = name.removeprefix("aten::").partition(".")
    operation = getattr(getattr(torch.ops.aten, base), overload or "default")
    positional, named = [], {}
    for argument in operation._schema.arguments:
        if argument.has_default_value() or str(argument.type).startswith("Optional"):
            value = None if not argument.has_default_value() else argument.default_value
        else:
            value = example(argument, device)
        if argument.kwarg_only:
            named[argument.name] = value
        else:
            positional.append(value)
    with torch.no_grad(), pytest.raises(NotImplementedError) as raised:
        operation(*positional, **named)
    version = recorded(OTHER)[0].removeprefix("# torch ")
    assert name in str(raised.value)
    assert f"not known to this server's torch {version}" in str(raised.value)


def arguments_of(name: str, minor: str) -> set[str]:
    """The arguments by name, from the recorded text."""
    schema = next(line for line in recorded(minor)[1:] if name_of(line) == name)
    parsed = torch._C.parse_schema(schema)
    return {argument.name for argument in parsed.arguments}


def test_every_operator_whose_arguments_differ_is_known_here() -> None:
    """New differences must be examined: each kind is tested below with hand-made schemas."""
    mine = {name_of(line): line for line in recorded("2.13")[1:]}
    older = {name_of(line): line for line in recorded("2.11")[1:]}
    differ = {name for name in mine.keys() & older.keys() if mine[name] != older[name]}
    assert differ == {
        "aten::_flash_attention_forward",
        "aten::_scaled_dot_product_attention_math_for_mps",
    }
    for name in differ:
        assert arguments_of(name, "2.11") < arguments_of(name, "2.13")


def with_add(arguments: str) -> list[str]:
    """This version's operators, but `add.Tensor` has these arguments after `other`."""
    lines = recorded(HERE if HERE in ("2.11", "2.13") else "2.13")
    before = "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1)"
    assert any(line.startswith(before) for line in lines)
    return [
        line.replace(before, f"aten::add.Tensor(Tensor self, Tensor other{arguments})")
        for line in lines
    ]


def test_an_argument_that_the_server_lacks_must_equal_its_default_at_every_call(
    tmp_path: Path,
) -> None:
    with playing(with_add(""), tmp_path) as device:
        x = torch.ones(3, device=device)
        y = torch.add(x, x)  # the next calls have the same signature: alpha is a slot
        for _ in range(2):
            with pytest.raises(NotImplementedError, match=r"aten::add\.Tensor.*argument alpha"):
                torch.add(x, x, alpha=2)
        assert torch.add(x, y).tolist() == [3.0] * 3


def test_an_argument_that_only_the_server_has_gets_its_default(tmp_path: Path) -> None:
    with playing(with_add(", *, Scalar alpha=1, int extra=7"), tmp_path) as device:
        x = torch.ones(3, device=device)
        assert torch.add(x, x, alpha=2).tolist() == [3.0] * 3


def test_a_server_that_has_the_same_operators_is_asked_nothing(
    tmp_path: Path, sync_count: Counter
) -> None:
    with serving(f"unix://{tmp_path}/socket") as url, torch_remote.connect(url) as machine:
        x = torch.ones(3, device=machine.devices[0])
        assert sync_count(lambda: (x * 3).relu().sum()) == 0


def test_a_server_that_has_others_is_asked_once(tmp_path: Path, sync_count: Counter) -> None:
    with playing(with_add(""), tmp_path) as device:
        x = torch.empty(3, device=device)
        assert sync_count(lambda: x.fill_(3)) == 1  # asks for the operators
        assert sync_count(lambda: (x * 3).relu().sum()) == 0
        assert sync_count(lambda: x + x) == 1  # asks for the one that differs
        assert sync_count(lambda: x + x[:2].sum()) == 0


def test_a_file_that_is_no_list_of_schemas_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("aten::add\n")
    done = run_python(
        "import torch_remote_cli as c, sys;"
        f"sys.exit(c.main(['serve', '--stdio', '--schemas', '{tmp_path}/file']))"
    )
    assert done.returncode == 1
    assert "cannot read schemas" in done.stderr and "# torch VERSION" in done.stderr


def test_a_list_of_schemas_that_is_not_there_is_told(tmp_path: Path) -> None:
    words = ["serve", "--listen", f"unix://{tmp_path}/s", "--schemas", f"{tmp_path}/missing"]
    done = run_python(f"import torch_remote_cli as c, sys; sys.exit(c.main({words!r}))")
    assert done.returncode == 1
    assert f"cannot read schemas from {tmp_path}/missing: No such file" in done.stderr


# The packages in python/ that the build has put an extension into.
PYTHON = Path(__file__).parents[2] / "python"
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
COMPILED = sorted({each.relative_to(PYTHON).parts[0] for each in PYTHON.rglob(f"*{SUFFIX}")})


@pytest.mark.parametrize("package", COMPILED)
def test_a_package_built_for_another_torch_says_so_in_a_sentence(package: str) -> None:
    done = run_python(f"import torch; torch.__version__ = '2.99.0'; import {package}")
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1
    assert last.startswith(f"ImportError: {package} was built for torch {HERE}"), done.stderr
    assert "this is torch 2.99.0" in last and "make build" in last
