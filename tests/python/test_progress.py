"""What large transfers show at a terminal, in a notebook, and when they are told to."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from helpers import DEADLINE, run_python

pytestmark = pytest.mark.slow

LARGE = 17 * 2**20  # floats: 68 MiB
SETUP = """
    import sys, torch, torch_remote
    x = torch.ones({size}, dtype=torch.float32)
    there = x.to("remote")
    torch.remote.synchronize()
    print("before", file=sys.stderr)
"""

# An upload that is received before this thread gets to wait for it is not shown, which happens on a
# busy machine: so there are several.
MOVES = """
    def move(what, function):
        print("then", what, file=sys.stderr)
        function()
    move("upload", lambda: [x.to("remote") for _ in range(5)])
    move("download", lambda: there.cpu())
    move("read", lambda: torch_remote.read(there).result())
    layers = [torch.nn.Linear(4096, 4400) for _ in range(5)]
    move("module", lambda: [layer.to("remote") for layer in layers])
    move("module back", lambda: layers[0].cpu())
"""
SHOWN = {
    "upload": "to remote",
    "download": "from remote",
    "read": "from remote",
    "module": "to remote",
    "module back": "from remote",
}


def shown(code: str, size: int = LARGE, **environment: str) -> str:
    """What the code prints to stderr."""
    done = run_python(SETUP.format(size=size) + f"    {code}\n", **environment)
    assert done.returncode == 0, done.stderr
    return done.stderr.partition("before\n")[2]


def test_a_large_transfer_is_shown() -> None:
    parts = shown(MOVES.strip(), TORCH_REMOTE_PROGRESS="1").split("then ")[1:]
    found = dict(part.split("\n", 1) for part in parts)
    assert list(found) == list(SHOWN)
    for what, text in found.items():
        assert SHOWN[what] in text


def test_a_small_transfer_is_not_shown() -> None:
    code = """
    x.to("remote"), there.cpu(), torch.nn.Linear(9, 9).to("remote").cpu()
    torch.nn.LazyLinear(9).to("remote")(torch.ones(1, 2, device="remote"))  # it has no size yet
    torch.nn.Linear(9, 9).remote().half().to(torch.float64).to("cpu", non_blocking=True)
    """
    assert shown(code.strip(), size=1000, TORCH_REMOTE_PROGRESS="1") == ""


@pytest.mark.parametrize("setting", ["", "0"])
def test_nothing_is_shown_without_a_terminal_or_when_switched_off(setting: str) -> None:
    assert shown("x.to('remote').cpu()", TORCH_REMOTE_PROGRESS=setting) == ""


CHECKPOINT = """
    import io
    {kind} = [torch.ones(2**20, device="{device}") for _ in range(20)]
    file = io.BytesIO()
    print("start", file=sys.stderr)
    torch.save({kind}, file)
    print("loading", file=sys.stderr)
    for _ in range(5):
        file.seek(0)
        torch.load(file, map_location="remote")
"""


def test_a_checkpoint_of_small_storages_is_shown_as_a_whole() -> None:
    code = CHECKPOINT.format(kind="parts", device="remote").strip()
    saving, _, loading = (
        shown(code, size=1, TORCH_REMOTE_PROGRESS="1").partition("start\n")[2].partition("loading")
    )
    assert "from remote" in saving and "80" in saving
    assert "to remote" in loading and "80" in loading


def test_a_safetensors_file_is_shown(tmp_path: Path) -> None:
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    code = f"""
    from safetensors.torch import load_file, save_file
    save_file({{str(i): torch.ones(2**20) for i in range(20)}}, {str(tmp_path / "x")!r})
    load_file({str(tmp_path / "x")!r}, device="cpu")
    load_file({str(tmp_path / "x")!r}, device="remote")
    """
    text = shown(code.strip(), size=1, TORCH_REMOTE_PROGRESS="1")
    assert "to remote" in text and "from" not in text


def at_terminal(code: str) -> str:
    """What a program prints to a terminal that is its stderr."""
    ours, theirs = pty.openpty()
    program = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stderr=theirs, stdout=subprocess.PIPE
    )
    os.close(theirs)
    text = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # the program has ended
            break
        if not part:
            break
        text += part
    os.close(ours)
    assert program.wait(DEADLINE) == 0, text.decode()
    return text.decode()


NO_TQDM = "    sys.modules['tqdm'] = sys.modules['tqdm.auto'] = None\n"


@pytest.mark.parametrize("prelude", ["", NO_TQDM], ids=["tqdm", "line"])
def test_a_terminal_shows_it(prelude: str) -> None:
    if not prelude:
        pytest.importorskip("tqdm", reason="tqdm is not installed")
    code = "    import sys\n" + prelude + SETUP.format(size=LARGE) + "    there.cpu()\n"
    text = at_terminal(code)
    assert "to remote" in text and "from remote" in text
    assert text.count("\n") <= 2  # the line is written over, and gone at the end
    if prelude:
        assert "68 of 68 MiB (100%)" in text


def test_a_closed_stderr_shows_nothing_and_harms_nothing() -> None:
    code = """
    sys.stderr.close()
    print(there.cpu().numel(), torch.nn.Linear(2, 2).to("remote").weight.is_remote)
    sys.stderr = None
    print(there.cpu().numel(), torch.nn.Linear(2, 2).to("remote").weight.is_remote)
    """
    done = run_python(SETUP.format(size=LARGE) + code)
    assert done.stdout.split() == [str(LARGE), "True"] * 2


def test_an_error_in_a_bar_does_not_end_the_transfer() -> None:
    code = """
    from torch_remote import _progress
    def broken(*_): raise ValueError("no bar")
    _progress._make_bar = broken
    y = there.cpu()
    assert y.sum() == y.numel()
    z = x.to("remote")
    assert z[5].item() == 1
    """
    assert "no bar" in shown(code.strip(), TORCH_REMOTE_PROGRESS="1")
