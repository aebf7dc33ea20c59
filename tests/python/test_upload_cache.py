"""`serve --cache`: what a client sent in an earlier session is not sent again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from helpers import DEADLINE, assert_same, serving, wait_until

import torch_remote

MIB = 1 << 20
SIZES = (2, 3, 2)  # MiB


def new_token(path: Path, digit: str) -> Path:
    path.write_text(digit * 64)
    path.chmod(0o600)
    return path


def entries(folder: Path) -> list[Path]:
    return [file for file in folder.glob("*/*") if len(file.name) == 64]


def damage(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.seek(MIB)
        byte = opened.read(1)[0]
        opened.seek(MIB)
        opened.write(bytes([byte ^ 1]))


def weights() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(size * MIB // 4, generator=generator) for size in SIZES]


def run(url: str, token: Path | None, then: Callable[[torch.device], object] | None = None) -> int:
    """A session that uploads the weights and one new tensor. Returns how many bytes were sent."""
    tensors = weights()
    with torch_remote.connect(url, token_file=token) as machine:
        with torch_remote.count() as counted:
            moved = [tensor.to(machine.devices[0]) for tensor in tensors]
            sent = counted.bytes_sent
        assert_same([tensor.cpu() for tensor in moved], tensors)
        moved[0].add_(1)  # after the bytes were given to the cache
        assert_same(moved[0].cpu(), tensors[0] + 1)
        if then is not None:
            then(machine.devices[0])
    return sent


def is_saved(folder: Path) -> bool:
    return wait_until(lambda: len(entries(folder)) == len(SIZES))


# Promise 7d.
def test_the_second_run_sends_no_weights(tmp_path: Path) -> None:
    cache, token = tmp_path / "cache", new_token(tmp_path / "token", "1")
    with serving("tcp://127.0.0.1:0", "--token-file", str(token), "--cache", str(cache)) as url:
        assert run(url, token) > sum(SIZES) * MIB
        assert is_saved(cache)
        assert run(url, token) < 4096
        # A damaged entry is sent anew, and so is a cut one.
        largest, other, *_ = sorted(entries(cache), key=lambda file: -file.stat().st_size)
        damage(largest)
        assert 3 * MIB < run(url, token) < 3 * MIB + 4096
        assert wait_until(largest.exists)
        with other.open("r+b") as cut:
            cut.truncate(MIB)
        assert 2 * MIB < run(url, token) < 2 * MIB + 4096
        assert wait_until(lambda: other.stat().st_size == 2 * MIB)
        assert run(url, token) < 4096


# Promise 7d.
def test_a_cached_upload_keeps_its_place_among_the_calls(tmp_path: Path) -> None:
    cache = tmp_path / "cache"

    def fail_then_upload(device: torch.device) -> None:
        x = weights()[1]
        y = x.to(device)
        y.mul_(2)
        y.copy_(x)  # an upload into a storage that has a value
        assert_same(y.cpu(), x)
        with pytest.raises(torch_remote.RemoteError, match="index"):
            torch.zeros(3, device=device)[torch.tensor([7], device=device)].cpu()
        assert_same(x.to(device).cpu(), x)
        assert_same(x.to(device)[10:20].cpu(), x[10:20])

    with serving(f"unix://{tmp_path}/s", "--cache", str(cache), "--cache-size", "64MiB") as url:
        run(url, None)
        assert is_saved(cache)
        assert run(url, None, fail_then_upload) < 4096
    # Who knows another token is another user, who gets nothing and learns nothing.
    token = new_token(tmp_path / "token", "2")
    options = ("--token-file", str(token), "--cache", str(cache))
    with serving("tcp://127.0.0.1:0", *options) as url:
        assert run(url, token) > sum(SIZES) * MIB
    # Without the option nothing is kept.
    with serving(f"unix://{tmp_path}/s") as url:
        assert run(url, None) > sum(SIZES) * MIB


def test_a_folder_that_cannot_be_used_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    for options, words in (
        (["--cache", f"{tmp_path}/open"], "chmod 700"),
        (["--cache-size", "1GiB"], "--cache-size needs --cache"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "torch_remote_cli", "serve", "--listen", f"unix://{tmp_path}/s",
             *options],
            capture_output=True, text=True, timeout=DEADLINE, check=False,
        )  # fmt: skip
        assert done.returncode != 0
        assert words in done.stderr
