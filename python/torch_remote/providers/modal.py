"""The Modal provider. It cannot launch anything yet, and says so."""

from __future__ import annotations

import builtins
import importlib.util
import os
from pathlib import Path

from . import Endpoint, Spec

NOT_YET = (
    "torch_remote cannot launch machines on Modal yet. Run `torch-remote serve` where the GPU is "
    "and connect to it with ssh://host or tcp://host:port, or use the embedded server: "
    "TORCH_REMOTE=local."
)


def is_configured() -> bool:
    """Whether Modal's SDK is installed and a token is there. Imports nothing."""
    if importlib.util.find_spec("modal") is None:
        return False
    file = Path(os.environ.get("MODAL_CONFIG_PATH") or Path.home() / ".modal.toml")
    return bool(os.environ.get("MODAL_TOKEN_ID")) or file.exists()


def launch(spec: Spec) -> Endpoint:
    raise NotImplementedError(f"{spec.url}: {NOT_YET}")


def status(endpoint: Endpoint) -> dict[str, str]:
    return {}


def logs(endpoint: Endpoint) -> str:
    return ""


def stop(endpoint: Endpoint) -> None:
    pass


def list() -> builtins.list[Endpoint]:
    return []
