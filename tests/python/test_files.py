"""`serve --files`: tensors of files on the server, which never pass this process."""

from __future__ import annotations

import json
import os
import re
import shlex
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
import torch
from helpers import DEADLINE, assert_same, serving
from safetensors.torch import load_file, save_file

import torch_remote

MIB = 1 << 20
DTYPES = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E5M2FNUZ": 8,
    "F8_E4M3FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32,
    "F32": 32, "F64": 64, "I64": 64, "U64": 64, "C64": 64, "F4": 4,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with serving(f"unix://{folder.parent}/s", "--files", str(folder)) as url:
        yield url


@pytest.fixture
def device(url: str) -> Iterator[torch.device]:
    with torch_remote.connect(url) as machine:
        yield machine.devices[0]


def write_header(path: Path, header: object, data: bytes) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def tensor(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def assert_same_bytes(loaded: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert list(loaded) == list(expected)
    for name, value in expected.items():
        here = loaded[name].cpu()
        assert (here.dtype, here.shape, here.stride()) == (value.dtype, value.shape, value.stride())
        assert torch.equal(as_bytes(here), as_bytes(value)), name


def test_every_dtype_is_what_safetensors_loads(folder: Path, device: torch.device) -> None:
    header, data = {}, b""
    for place, (dtype, bits) in enumerate(DTYPES.items()):
        # So that some are at addresses that are no multiple of their size.
        header[f"odd {place}"] = tensor("U8", [1], len(data), len(data) + 1)
        data += b"\x01"
        end = len(data) + 24 * bits // 8
        header[f"{dtype} é"] = tensor(dtype, [3, 4, 2], len(data), end)
        values = os.urandom(end - len(data))
        data += bytes(byte & 1 for byte in values) if dtype == "BOOL" else values
    for name, shape in (("none", [0]), ("no rows", [0, 3]), ("no columns", [2, 0])):
        header[name] = tensor("F32", shape, len(data), len(data))
    header["number"] = tensor("F32", [], len(data), len(data) + 4)
    data += os.urandom(4)
    write_header(folder / "dtypes.safetensors", header, data)
    loaded = torch_remote.load("dtypes.safetensors", device)
    expected = load_file(folder / "dtypes.safetensors")
    assert all(value.device == device for value in loaded.values())
    assert_same_bytes({name: loaded[name] for name in expected}, expected)
    assert len(loaded) == len(expected)


def test_a_checkpoint_does_not_pass_this_process(folder: Path, device: torch.device) -> None:
    state = {f"layer.{i}.weight": torch.randn(1024, 1024) for i in range(16)}
    save_file(state, folder / "large.safetensors")
    with torch_remote.count() as counted:
        loaded = torch_remote.load("large.safetensors", device)
        torch_remote.synchronize()
    assert counted.bytes_sent < 16_384
    assert counted.bytes_received < 16_384
    assert_same_bytes(loaded, {name: state[name] for name in loaded})
    assert set(loaded) == set(state)


def test_a_module_takes_the_tensors_as_they_are(folder: Path, device: torch.device) -> None:
    source = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    save_file(source.state_dict(), folder / "module.safetensors")
    with torch.device("meta"):
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    model.load_state_dict(torch_remote.load("module.safetensors", device), assign=True)
    x = torch.randn(4, 8)
    model(x.to(device)).sum().backward()
    source(x).sum().backward()
    for ours, theirs in zip(model.parameters(), source.parameters(), strict=True):
        assert_same(ours.grad.cpu(), theirs.grad)


def test_a_checkpoint_in_several_files_is_named_by_its_index(
    folder: Path, device: torch.device
) -> None:
    below = folder / "sharded"
    below.mkdir()
    state = {name: torch.randn(5, 3) for name in "abcd"}
    save_file({"a": state["a"], "b": state["b"], "unused": torch.ones(3)}, below / "1.safetensors")
    save_file({"c": state["c"], "d": state["d"]}, below / "2.safetensors")
    where = {"a": "1.safetensors", "c": "2.safetensors", "b": "1.safetensors", "d": "2.safetensors"}
    index = below / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 240}, "weight_map": where}))
    loaded = torch_remote.load("sharded/model.safetensors.index.json", device)
    assert_same({name: loaded[name].cpu() for name in sorted(loaded)}, state)
    for wrong, words in (
        ({"x": "1.safetensors"}, "the tensor 'x': it has not"),
        ({"a": "3.safetensors"}, "no folder of serve --files has the file sharded/3.safetensors"),
        ({"a": "../large.safetensors"}, "has an empty part, '.' or '..'"),
        ({"a": "/etc/passwd"}, "begins with '/'"),
    ):
        index.write_text(json.dumps({"weight_map": wrong}))
        with pytest.raises((ValueError, torch_remote.RemoteError), match=re.escape(words)):
            torch_remote.load("sharded/model.safetensors.index.json", device)


def test_files_are_listed(folder: Path, url: str) -> None:
    below = folder / "listed"
    (below / "deep").mkdir(parents=True)
    (below / "deep" / "x.bin").write_bytes(b"12345")
    (below / "a").write_bytes(b"")
    (below / "link").symlink_to(below / "a")
    (below / "new\nline").write_bytes(b"1")
    os.mkfifo(below / "fifo")
    with torch_remote.connect(url) as machine:
        listed = torch_remote.files(machine.devices[0])
    assert [each for each in listed if each.name.startswith("listed/")] == [
        torch_remote.ServerFile("listed/a", 0),
        torch_remote.ServerFile("listed/deep/x.bin", 5),
    ]
    assert [each.name for each in listed] == sorted(each.name for each in listed)


def test_a_slice_of_a_file_is_a_tensor(folder: Path, device: torch.device) -> None:
    values = torch.randint(0, 1 << 16, (5 * MIB,), dtype=torch.int32).to(torch.uint16)
    (folder / "train.bin").write_bytes(values.numpy().tobytes())
    with torch_remote.count() as counted:
        data = torch_remote.array("train.bin", torch.uint16, device)
        rows = torch.stack([data[i : i + 1024].long() for i in torch.tensor([7, 4 * MIB])])
        whole, end, none, last = data[:], data[-3:], data[5:5], data[-1]
        torch_remote.synchronize()
    assert counted.bytes_sent + counted.bytes_received < 16_384
    assert len(data) == len(values)
    assert_same(rows.cpu(), torch.stack([values[7:1031], values[4 * MIB :][:1024]]).long())
    assert_same(whole.cpu(), values)
    assert_same(end.cpu(), values[-3:])
    assert none.shape == (0,)
    assert last.shape == ()
    assert last.item() == values[-1].item()
    with pytest.raises(IndexError, match="which has 5242880"):
        data[5 * MIB]
    with pytest.raises(ValueError, match="no step"):
        data[::2]
    with pytest.raises(ValueError, match=r"no whole number of torch\.complex64"):
        (folder / "odd.bin").write_bytes(b"123")
        torch_remote.array("odd.bin", torch.complex64, device)


HEADERS: dict[str, tuple[object, bytes, str]] = {
    "overlap": ({"a": tensor("U8", [2], 0, 2), "b": tensor("U8", [2], 1, 3)}, b"abc", "overlaps"),
    "hole": ({"a": tensor("U8", [1], 1, 2)}, b"ab", "behind bytes that are no tensor's"),
    "beyond": ({"a": tensor("U8", [9], 0, 9)}, b"ab", "does not end inside the file"),
    "overflow": ({"a": tensor("F64", [1 << 40, 1 << 40], 0, 8)}, b"12345678", "more elements"),
    "huge": ({"a": tensor("U8", [1], 0, 1 << 64)}, b"a", "a number is too large"),
    "negative": ({"a": tensor("U8", [-1], 0, 1)}, b"a", "a whole number is expected"),
    "lie": ({"a": tensor("F32", [3], 0, 8)}, b"12345678", "needs 12 bytes"),
    "twice": (b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
              b'"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"a", "is there twice"),
    "dtype": ({"a": tensor("F6_E2M3", [4], 0, 3)}, b"abc", "the dtype F6_E2M3"),
    "escape": ({"\x1b[2J": tensor("U8", [1], 0, 1)}, b"a", "control character: \\x1b[2J"),
    "zero": ({"a\0b": tensor("U8", [1], 0, 1)}, b"a", "control character: a\\x00b"),
    "deep": (b'{"a":' + b'{"x":[' * 100_000, b"", "nested too deep"),
    "text": (b"hello", b"", "an object is expected"),
    "binary": (b"\xff" * 100, b"", "not UTF-8"),
    "empty": (b"", b"", "an object is expected"),
}  # fmt: skip


# Promise 7e.
@pytest.mark.parametrize("name", HEADERS)
def test_a_hostile_header_is_one_sentence(folder: Path, device: torch.device, name: str) -> None:
    header, data, words = HEADERS[name]
    write_header(folder / f"{name}.safetensors", header, data)
    with pytest.raises(torch_remote.RemoteError, match=re.escape(words)) as raised:
        torch_remote.load(f"{name}.safetensors", device)
    assert len(str(raised.value)) < 1000
    assert "\x1b" not in str(raised.value)
    assert torch.ones(2, device=device).sum().item() == 2  # the session goes on


# Promise 7e.
def test_a_header_of_a_million_tensors_and_one_of_100_mb_are_refused(
    folder: Path, device: torch.device
) -> None:
    members = b",".join(
        b'"%d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}' % i for i in range(1_000_000)
    )
    write_header(folder / "million.safetensors", b"{" + members + b"}", b"")
    write_header(folder / "many.safetensors", b"{" + members[:16_000_000] + b"}", b"")
    with (folder / "long.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", 100_000_000))
        file.truncate(8 + 100_000_000)
    for name, words in (
        ("million", "and at most 33554432 are read"),
        ("many", "it names more than 262144 tensors"),
        ("long", "its header has 100000000 bytes, and at most 33554432 are read"),
    ):
        with pytest.raises(torch_remote.RemoteError, match=words):
            torch_remote.load(f"{name}.safetensors", device)


# Promise 7e.
def test_no_name_leads_out_of_the_folder(folder: Path, device: torch.device) -> None:
    secret = folder.parent / "secret.safetensors"
    save_file({"a": torch.ones(1)}, secret)
    (folder / "out.safetensors").symlink_to(secret)
    (folder / "up").symlink_to(folder.parent)
    os.mkfifo(folder / "fifo.safetensors")
    (folder / "folder.safetensors").mkdir()
    for name, words in (
        ("../secret.safetensors", "'.' or '..'"),
        (str(secret), "begins with '/'"),
        ("/proc/self/environ", "begins with '/'"),
        ("out.safetensors", "is a symbolic link, which is not followed"),
        ("up/secret.safetensors", "is a symbolic link, which is not followed"),
        ("fifo.safetensors", "is a FIFO"),
        ("folder.safetensors", "is a folder"),
        ("a\0b", "has a control character"),
        ("a\nb", "has a control character"),
        ("\x1b]0;x\x07", "has a control character"),
        ("", "is empty"),
        ("x" * 300, "File name too long"),
    ):
        with pytest.raises(torch_remote.RemoteError, match=re.escape(words)) as raised:
            torch_remote.load(name, device)
        assert "\x1b" not in str(raised.value)
    with pytest.raises(ValueError, match="has 2000 bytes"):
        torch_remote.load("x" * 2000, device)
    (folder / "up").unlink()
    assert torch.ones(2, device=device).sum().item() == 2


def test_a_file_that_changes_while_it_is_read_is_an_error_at_its_line(
    folder: Path, device: torch.device
) -> None:
    path = folder / "changing.bin"
    path.write_bytes(b"a" * MIB)
    data = torch_remote.array("changing.bin", torch.uint8, device)
    assert data[:2].tolist() == [97, 97]
    os.truncate(path, 10)
    short = data[100:200]
    with pytest.raises(
        torch_remote.RemoteError, match=r"^load on .*test_files\.py.*became shorter while"
    ):
        short.cpu()
    os.truncate(path, MIB)
    with pytest.raises(torch_remote.RemoteError, match="was changed while it was read"):
        data[:100].cpu()
    assert torch_remote.array("changing.bin", torch.uint8, device)[:2].tolist() == [97, 97]


# Promise 7e.
def test_a_file_of_torch_save_is_refused_with_a_command_that_converts_it(
    folder: Path, device: torch.device
) -> None:
    layer = torch.nn.Linear(3, 2)
    state = {"weight": layer.weight, "tied": layer.weight, "turned": torch.rand(2, 3).t()}
    torch.save(state, folder / "old.pt")
    with pytest.raises(torch_remote.RemoteError, match=r"torch\.save, which is a pickle") as raised:
        torch_remote.load("old.pt", device)
    command = re.search(r'python (-c "[^"]*") FILE FILE.safetensors', str(raised.value))
    assert command is not None
    words = [*shlex.split(command[1]), "old.pt", "new.safetensors"]
    subprocess.run([sys.executable, *words], cwd=folder, check=True, timeout=DEADLINE)
    loaded = torch_remote.load("new.safetensors", device)
    assert_same({name: loaded[name].cpu() for name in state}, state)


def test_names_and_dtypes_are_checked_before_a_file_is_opened(
    folder: Path, device: torch.device
) -> None:
    (folder / "numbers.bin").write_bytes(bytes(range(6)))
    assert torch_remote.array(Path("numbers.bin"), torch.uint8, device)[1:3].tolist() == [1, 2]
    for wrong in ("uint8", numpy.dtype("uint8"), None):
        with pytest.raises(TypeError, match=r"is a torch\.dtype"):
            torch_remote.array("numbers.bin", wrong, device)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="is UTF-8"):
        torch_remote.load("\udcff", device)
    with pytest.raises(TypeError, match="is text"):
        torch_remote.load(b"numbers.bin", device)  # type: ignore[arg-type]


def test_a_server_without_the_option_says_so(tmp_path: Path) -> None:
    with serving(f"unix://{tmp_path}/s") as url, torch_remote.connect(url) as machine:
        for ask in (torch_remote.files, lambda device: torch_remote.load("a", device)):
            with pytest.raises(NotImplementedError, match="--files DIR"):
                ask(machine.devices[0])


def test_folders_that_are_not_there_are_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ("none", "file"):
        done = subprocess.run(
            [sys.executable, "-m", "torch_remote_cli", "serve", "--listen", f"unix://{tmp_path}/s",
             "--files", str(tmp_path / name)],
            capture_output=True, text=True, timeout=DEADLINE, check=False,
        )  # fmt: skip
        assert done.returncode == 1
        assert f"--files {tmp_path / name}" in done.stderr


def test_several_folders_and_the_limit_of_memory(tmp_path: Path) -> None:
    for name, value in (("one", 1.0), ("two", 2.0)):
        (tmp_path / name).mkdir()
        save_file({"x": torch.full((4 * MIB,), value)}, tmp_path / name / f"{name}.safetensors")
    save_file({"x": torch.full((3,), 3.0)}, tmp_path / "two" / "one.safetensors")
    (tmp_path / "one" / "x.bin").symlink_to("one.safetensors")
    (tmp_path / "two" / "x.bin").write_bytes(b"\x07")
    folders = ("--files", str(tmp_path / "one"), "--files", str(tmp_path / "two"))
    with (
        serving(f"unix://{tmp_path}/s", *folders, "--max-memory", "20MiB") as url,
        torch_remote.connect(url) as machine,
    ):
        device = machine.devices[0]
        assert [each.name for each in torch_remote.files(device)] == [
            "one.safetensors",
            "two.safetensors",
            "x.bin",
        ]
        assert torch_remote.array("x.bin", torch.uint8, device)[0].item() == 7
        first = torch_remote.load("one.safetensors", device)
        assert first["x"].sum().item() == 4 * MIB
        with pytest.raises(torch.OutOfMemoryError):
            torch_remote.load("two.safetensors", device)["x"].sum().item()
        del first
        assert torch_remote.load("two.safetensors", device)["x"].sum().item() == 8 * MIB
