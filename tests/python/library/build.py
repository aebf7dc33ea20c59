"""Compiles a library of operators for the installed torch, if either has changed."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import torch

SOURCE = Path(__file__).parent / "operators.cpp"
ATTACKS = SOURCE.with_name("attacks.h")  # that it includes
BUILD = Path(__file__).parents[3] / "build" / "test-library"


def _flags() -> list[str]:
    home = Path(torch.__file__).parent
    include = home / "include"
    return [
        "-std=c++20",
        "-O0",
        "-shared",
        "-fPIC",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        *(f"-isystem{folder}" for folder in (include, include / "torch/csrc/api/include")),
        f"-L{home / 'lib'}",
        f"-Wl,-rpath,{home / 'lib'}",
        "-ltorch_cpu",
        "-lc10",
    ]


def library(source: Path = SOURCE) -> Path:
    state = repr([torch.__version__, *_flags()]).encode()
    state += b"".join(file.read_bytes() for file in (source, ATTACKS))
    path = BUILD / f"{source.stem}-{hashlib.sha256(state).hexdigest()[:16]}.so"
    if path.exists():
        return path
    BUILD.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}")
    compiler = os.environ.get("CXX", "c++")
    subprocess.run([compiler, str(source), *_flags(), "-o", str(unfinished)], check=True)
    unfinished.rename(path)
    return path
