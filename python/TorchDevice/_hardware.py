"""What there is on this machine, and which accelerator the user prefers."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, NamedTuple

import torch

NAMES = ("cuda", "mps", "remote")


class Hardware(NamedTuple):
    """Numbers of devices. `remote` counts devices of configured machines without connecting."""

    cuda: int
    mps: bool
    remote: int


# torch's own functions, kept from before the masquerade replaces them.
_cuda_is_available = torch.cuda.is_available
_cuda_device_count = torch.cuda.device_count
_mps_is_available = torch.backends.mps.is_available


def is_remote_configured() -> bool:
    """Whether a front door is imported, or `TORCH_REMOTE` or the config file names the default."""
    if "torch_remote" in sys.modules or "torch_modal" in sys.modules:
        return True
    package = find_spec("torch_remote")
    if package is None or package.origin is None:
        return False
    if os.environ.get("TORCH_REMOTE"):
        return True
    return "url" in _load_alone(Path(package.origin).with_name("_config.py")).read_config()


def _load_alone(file: Path) -> Any:
    """A module of a package without the package, whose import would load the client."""
    spec = spec_from_file_location(f"{__package__}.{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for it there
    spec.loader.exec_module(module)
    return module


def _remote_count(*, connect: bool) -> int:
    if not is_remote_configured():
        return 0
    if not ("torch_remote" in sys.modules or "torch_modal" in sys.modules):
        return 1
    from torch_remote import _C, _backend

    if connect:
        return int(_backend.device_count())
    return max(1, _C.device_count() if _C.is_initialized() else 1)


def probe(*, connect: bool = False) -> Hardware:
    """Asks torch. A CUDA build without a GPU has no CUDA.

    `connect`: a configured machine may be connected to, to count its devices.
    """
    cuda = int(_cuda_device_count()) if _cuda_is_available() else 0
    return Hardware(cuda, bool(_mps_is_available()), _remote_count(connect=connect))


def order() -> tuple[str, str, str]:
    """`TORCHDEVICE_ORDER`, such as `remote,cuda`, then what it leaves out in the usual order.

    What stands behind `cpu` in it is not used.
    """
    usual = ("mps", "cuda", "remote") if sys.platform == "darwin" else NAMES
    text = os.environ.get("TORCHDEVICE_ORDER", "")
    wanted = [name.strip().lower() for name in text.split(",") if name.strip()]
    unknown = sorted(set(wanted) - {*NAMES, "cpu"})
    if unknown:
        raise ValueError(
            f"TORCHDEVICE_ORDER names {', '.join(unknown)}; it may name cuda, mps, remote and cpu"
        )
    if "cpu" in wanted:
        chosen = wanted[: wanted.index("cpu")]
        chosen += ["none"] * (3 - len(chosen))
    else:
        chosen = wanted + [name for name in usual if name not in wanted]
    first, second, third = chosen[:3]
    return first, second, third
