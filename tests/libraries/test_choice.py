"""The rule by which a library takes our device, and what happens in other orders and versions."""

from __future__ import annotations

import subprocess
import sys
import types

import pytest
import torch

import torch_remote
from torch_remote.integrations import choice

LIBRARIES = ["accelerate", "transformers", "lightning", "safetensors", "sentence_transformers"]


def run(code: str, **environment: str) -> str:
    import os

    process = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=240, check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stdout
    return process.stdout.strip()


def test_a_local_gpu_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    assert choice.instead_of_cpu(cpu).type == "remote"
    assert choice.instead_of_cpu(torch.device("meta")).type == "meta"
    monkeypatch.setattr(choice, "local_gpus", lambda: 1)
    assert choice.instead_of_cpu(cpu) == cpu
    assert choice.our_torch.cuda is torch.cuda


def test_no_library_is_imported_and_no_server_is_started() -> None:
    code = f"""
import sys, torch_remote
print([each for each in {LIBRARIES} if each in sys.modules])
from accelerate import Accelerator
from transformers import TrainingArguments
print(Accelerator().device, torch_remote._C.is_initialized())
"""
    assert run(code).splitlines()[-2:] == ["[]", "remote False"]


def test_a_library_whose_import_imports_torch_remote_is_changed() -> None:
    """`import torch`, in the middle of the library's import, imports torch_remote."""
    code = """
from safetensors.torch import load_file
from accelerate import Accelerator
accelerator = Accelerator(mixed_precision="fp16")
print(hasattr(load_file, "__wrapped__"), accelerator.device, accelerator.scaler.is_enabled())
"""
    assert run(code, TORCH_REMOTE_AUTOLOAD="1").splitlines()[-1] == "True remote True"


def test_the_name_may_be_modal() -> None:
    code = """
import torch_modal
from accelerate import Accelerator
from lightning.pytorch.accelerators import AcceleratorRegistry
print(Accelerator(mixed_precision="fp16").device, "modal" in AcceleratorRegistry)
"""
    assert run(code).splitlines()[-1] == "modal True"


def test_a_version_that_is_not_known_gives_a_warning() -> None:
    module = types.ModuleType("accelerate.state")
    with pytest.warns(UserWarning, match="does not know this version of accelerate"):
        choice._change_if_known(torch_remote.integrations.accelerate._change_state, module)

    def function() -> tuple[str, ...]:
        return ("cuda", "xpu")

    with pytest.raises(AttributeError, match="function has no tuple"):
        choice.add_name(function, ("cuda", "mps"))  # type: ignore[arg-type]
