"""For tests with the SDKs of providers, which `make test-providers` installs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

from helpers import wait_until


@pytest.fixture(scope="session", autouse=True)
def no_server_is_left() -> Iterator[None]:
    """With tools/alone.sh, /proc has only the processes of these tests."""
    yield
    if "TORCH_REMOTE_TEST_ALONE" in os.environ:
        assert wait_until(lambda: not _servers())


def _servers() -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if "torch-remote-server" in words or "gcs_server" in words or "raylet" in words:
                found.append(words)
    return found
