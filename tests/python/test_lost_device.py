"""Failures of an accelerator, raised by a library's operator on a CPU server."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from helpers import run_python, serving
from library.build import library

import torch_remote

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def path() -> Path:
    path = library()
    torch.ops.load_library(path)
    return path


@pytest.fixture(scope="module")
def url(path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    socket = tmp_path_factory.mktemp("server") / "socket"
    with serving(f"unix://{socket}", "--library", str(path)) as url:
        yield url


def line() -> int:
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return frame.f_back.f_lineno


def test_a_device_assert_ends_the_session_and_names_the_calls_that_it_can_have_been(
    url: str,
) -> None:
    with torch_remote.connect(url) as machine:
        x = torch.ones(3, device=machine.devices[0])
        torch_remote.synchronize()
        first, y = line(), x + 1
        last, failed = line(), torch.ops.tests.fault(y, 710)
        texts = []
        for value in (failed, y, x):
            with pytest.raises(torch.AcceleratorError) as raised:
                value.tolist()
            assert isinstance(raised.value, torch_remote.SessionLost)
            texts.append(str(raised.value))
        assert texts[0] == texts[1] == texts[2]
        for part in (
            "tests::fault",
            "or one of the 1 calls before it",
            f"{__file__}:{first} in",
            f"{__file__}:{last} in",
            "CUDA error: this is a test",
        ):
            assert part in texts[0]


def test_the_process_lives_and_can_connect_anew(url: str) -> None:
    with torch_remote.connect(url) as machine:
        x = torch.ones(3, device=machine.devices[0])
        with pytest.raises(torch.AcceleratorError):
            torch.ops.tests.fault(x, 710).tolist()
    with torch_remote.connect(url) as machine:
        assert torch.ones(3, device=machine.devices[0]).sum().item() == 3


def test_in_blocking_mode_the_call_itself_is_named(url: str, path: Path) -> None:
    done = run_python(
        f"""
        import torch, torch_remote
        torch.ops.load_library({str(path)!r})
        x = torch.ones(3, device=torch_remote.connect({url!r}).devices[0]) + 1
        torch.ops.tests.fault(x, 710)
        """,
        TORCH_REMOTE_BLOCKING="1",
    )
    last = done.stderr.splitlines()[-1]
    assert "DeviceLost" in last, done.stderr
    assert "tests::fault on remote:0" in last
    assert ", called at <string>:5 in <module>: CUDA error: this is a test" in last
    assert "calls before it" not in last


def test_an_error_that_the_device_survives_is_one_of_the_call(url: str) -> None:
    with torch_remote.connect(url) as machine:
        x = torch.ones(3, device=machine.devices[0])
        failed = torch.ops.tests.fault(x, 9)
        with pytest.raises(torch.AcceleratorError) as raised:
            failed.tolist()
        assert isinstance(raised.value, torch_remote.RemoteError)
        assert not isinstance(raised.value, torch_remote.SessionLost)
        assert x.tolist() == [1, 1, 1]


def test_a_device_out_of_memory_is_pytorchs_own_error(url: str) -> None:
    with torch_remote.connect(url) as machine:
        x = torch.ones(3, device=machine.devices[0])
        for _ in range(2):  # late, then at the call
            with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
                torch.ops.tests.exhaust(x).tolist()
