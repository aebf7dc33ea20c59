"""TorchDevice in this process: off after its import, on for a test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

os.environ.setdefault("TORCHDEVICE_LOG_LEVEL", "ERROR")
with mock.patch.dict(os.environ, {"TORCHDEVICE_POLICY": "off"}):
    import TorchDevice as TorchDevice  # tests take it from here, where it is off

QUIET = {"TORCHDEVICE_LOG_LEVEL": "ERROR"}  # for the environment of a program
TARGETS = ("cpu", "remote")
ACCELERATED = {"cpu": "cpu", "remote": "remote:0"}  # what "cuda" becomes


@contextmanager
def redirected(target: str, policy: str = "full", **options: str) -> Iterator[str]:
    """The device that "cuda" becomes."""
    order = "cpu" if target == "cpu" else "remote"
    with mock.patch.dict(os.environ, {"TORCHDEVICE_ORDER": order}):
        TorchDevice.enable(policy, **options)
        try:
            yield ACCELERATED[target]
        finally:
            TorchDevice.disable()
