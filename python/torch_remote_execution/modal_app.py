"""The Modal app, its image, and the GPU types that `Sandbox.create` takes.

torch_remote's provider `modal` uses it. Modal's SDK is imported only by the functions that need it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

APP_NAME = "torch-remote"
# The GPU types: names, memory, prices. torch_remote chooses by it.
GPUS: dict[str, Any] = json.loads((Path(__file__).parent / "gpus.json").read_text())
# Our name of each GPU type, and Modal's, which is the same.
GPU_SPECS: dict[str, str] = {each["name"]: each["name"] for each in GPUS["types"]}


def gpu_spec(gpu: str) -> str:
    """What Modal calls a GPU type."""
    if gpu not in GPU_SPECS:
        raise ValueError(f"Invalid GPU type '{gpu}'. Valid types: {list(GPU_SPECS)}")
    return GPU_SPECS[gpu]


def make_app(name: str = APP_NAME) -> Any:
    """The Modal app, made when it is first looked up: there is no deploy step."""
    return _modal().App.lookup(name, create_if_missing=True)


def make_image(
    torch_version: str, python: str | None = None, programs: Mapping[str, str] | None = None
) -> Any:
    """Debian slim with the client's minor version of Python and its torch, built for CUDA.

    `torch_version` is such as `2.13.0`. torchvision and torchaudio are those that pip finds for it.
    `programs` are copied into the image: paths there, and the files here.
    """
    python = python or f"{sys.version_info.major}.{sys.version_info.minor}"
    packages = [f"torch=={torch_version}", "torchvision", "torchaudio", "nvidia-ml-py"]
    image = _modal().Image.debian_slim(python_version=python).apt_install("libssl3")
    image = image.pip_install(*packages)
    for there, here in (programs or {}).items():
        image = image.add_local_file(here, there, copy=True)
    return image.run_commands("chmod 755 " + " ".join(programs)) if programs else image


def _modal() -> Any:
    try:
        import modal
    except ImportError as error:
        raise ImportError("Modal's SDK is missing: run `pip install modal`") from error
    return modal
