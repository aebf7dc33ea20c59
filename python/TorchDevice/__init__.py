"""TorchDevice: code written for one accelerator runs on another.

    import TorchDevice            # before or after `import torch`
    x = torch.zeros(2, device="cuda")   # on the accelerator there is, else on the CPU

docs/redirection.md has the policy, the variables and the limits.
"""

from __future__ import annotations

import os
import sys
from importlib import metadata

if "torch" not in sys.modules:
    os.environ.setdefault("PYTORCH_ENABLE_MPS_FALLBACK", "1")

import torch

_HOW_TO_BUILD = "run `make build` or `pip install .`"

try:
    from . import _C
except ImportError as error:
    raise ImportError(
        f"TorchDevice does not load into torch {torch.__version__} ({error}): {_HOW_TO_BUILD}"
    ) from error
if _C.BUILT_FOR_TORCH.split(".")[:2] != torch.__version__.split(".")[:2]:
    raise ImportError(
        f"TorchDevice was built for torch {_C.BUILT_FOR_TORCH} and this is torch "
        f"{torch.__version__}: {_HOW_TO_BUILD}"
    )

from . import _paths, _state, core, utils  # noqa: E402
from ._device import TorchDevice  # noqa: E402
from ._log import auto_log, report, set_level, sites  # noqa: E402
from ._memory import memory_budget  # noqa: E402
from ._state import cpu_override, disable, enable, is_enabled, policy  # noqa: E402

__all__ = [
    "TDLogger",
    "TorchDevice",
    "__version__",
    "auto_log",
    "core",
    "cpu_override",
    "cuda",
    "disable",
    "enable",
    "is_enabled",
    "memory_budget",
    "ops",
    "policy",
    "report",
    "set_level",
    "sites",
    "utils",
]

_paths.install()
cuda, ops = (sys.modules[f"TorchDevice.{path}"] for path in ("cuda", "ops"))
TDLogger = sys.modules["TorchDevice.core.logger"]

try:
    __version__ = metadata.version("torch-remote")
except metadata.PackageNotFoundError:  # imported from a build folder
    __version__ = "unknown"

_state.enable()
