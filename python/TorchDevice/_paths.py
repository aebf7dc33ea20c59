"""The paths of the original TorchDevice: modules whose names live elsewhere.

`import TorchDevice.ops.nn.layers` works, and `layers.Linear` is `torch.nn.Linear`. A name is looked
up when it is asked for: the names of `torch.cuda` answer for the device that is in use then. They
are made at `import TorchDevice` and cannot be reloaded.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_ALL = "*"  # every public name
_CUDA = "torch.cuda"
_NN = "torch.nn.modules"

# Path below TorchDevice → where its names live. A path above others is a package.
PATHS: dict[str, dict[str, str]] = {
    "cuda": {_CUDA: _ALL},
    "core.hardware_info": {
        "TorchDevice._hardware": "Hardware is_remote_configured order probe",
        "TorchDevice._host": "core_count cpu_name free_bytes resident_bytes total_bytes",
    },
    "core.logger": {
        "TorchDevice._log": "Report Site auto_log log_info logger report set_level sites warn_once",
    },
    "core.modules": {"TorchDevice.core.device": "module_to_replacement"},
    "core.patch": {
        "TorchDevice._state": "apply_patches disable enable ensure_patched is_enabled",
    },
    "core.tensors": {"TorchDevice.core.device": "tensor_to_replacement"},
    "ops": {},
    "ops.autograd": {},
    "ops.autograd.function": {"torch.autograd": "Function"},
    "ops.autograd.grad_mode": {
        "torch.autograd.grad_mode": "enable_grad inference_mode no_grad set_grad_enabled",
    },
    "ops.autograd.variable": {"torch.autograd": "Variable"},
    "ops.events": {},
    "ops.events.cuda": {_CUDA: "Event"},
    "ops.events.mps": {"torch.mps": "Event"},
    "ops.events.sync": {_CUDA: "synchronize"},
    "ops.memory": {},
    "ops.memory.management": {
        "TorchDevice._memory": "empty_cache memory_budget set_per_process_memory_fraction",
        "torch_remote_patches.byte_count": "parse_bytes",
    },
    "ops.memory.stats": {
        _CUDA: "memory_allocated max_memory_allocated memory_reserved max_memory_reserved "
        "memory_stats memory_summary mem_get_info reset_peak_memory_stats",
    },
    "ops.nn": {"torch.nn": _ALL},
    "ops.nn.activation": {f"{_NN}.activation": _ALL},
    "ops.nn.attention": {
        "torch.nn": "MultiheadAttention",
        "torch.nn.functional": "scaled_dot_product_attention",
    },
    "ops.nn.containers": {f"{_NN}.container": _ALL},
    "ops.nn.init": {"torch.nn.init": _ALL},
    "ops.nn.layers": {
        f"{_NN}.{kind}": _ALL
        for kind in ("conv", "dropout", "linear", "pooling", "rnn", "sparse", "transformer")
    },
    "ops.nn.normalization": {
        f"{_NN}.{kind}": _ALL for kind in ("batchnorm", "instancenorm", "normalization")
    },
    "ops.streams": {},
    "ops.streams.cuda": {
        _CUDA: "Stream StreamContext stream current_stream default_stream set_stream",
    },
    "ops.streams.mps": {"torch.mps": "synchronize"},
    "ops.streams.sync": {_CUDA: "synchronize"},
    "utils.compile": {"torch": "compile"},
    "utils.type_utils": {"TorchDevice.utils.device_utils": "index_of is_device_like"},
}


def _sources(module_name: str) -> list[tuple[ModuleType, str]]:
    listed = PATHS[module_name.partition(".")[2]]
    return [(importlib.import_module(source), names) for source, names in listed.items()]


class _Path(ModuleType):
    """A module that has no names of its own but those of the modules below it."""

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            return self.__dir__()
        for source, names in _sources(self.__name__):
            if name in names.split() or (names == _ALL and not name.startswith("__")):
                with suppress(AttributeError):
                    return getattr(source, name)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def __dir__(self) -> list[str]:
        names = {each for each, value in vars(self).items() if isinstance(value, ModuleType)}
        for source, listed in _sources(self.__name__):
            every = getattr(source, "__all__", None) or dir(source)
            names.update(every if listed == _ALL else listed.split())
        return sorted(each for each in names if not each.startswith("_"))


class _Finder:
    """Finds and makes these modules, as an entry of `sys.meta_path`, while install() runs."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        package, _, rest = name.partition(".")
        if package != __package__ or rest not in PATHS:
            return None
        is_package = any(each.startswith(f"{rest}.") for each in PATHS)
        loader: Any = _Finder
        return ModuleSpec(name, loader, origin=__name__, is_package=is_package)

    @staticmethod
    def create_module(spec: ModuleSpec) -> ModuleType:
        return _Path(spec.name)

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        """A module has its docstring; its names are looked up."""
        sources = ", ".join(PATHS[module.__name__.partition(".")[2]])
        module.__doc__ = f"Names of {sources}." if sources else "A package of such modules."


def install() -> None:
    """Imports every path, so that it is in `sys.modules` and an attribute of its package.

    The finder is the first meanwhile: folders without a file, which an older version may have left,
    are packages for Python's own.
    """
    finder: Any = _Finder
    sys.meta_path.insert(0, finder)
    try:
        for path in PATHS:
            importlib.import_module(f"{__package__}.{path}")
    finally:
        sys.meta_path.remove(finder)
