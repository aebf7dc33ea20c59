"""A PyTorch device that is somewhere else: `torch.randn(3, device="remote")`.

Importing this package names PyTorch's private backend `remote`, once for the process, and starts
nothing: the first tensor does.
"""

from __future__ import annotations

import atexit
import importlib.util
import sys
import warnings
from importlib import metadata
from pathlib import Path

import torch

_HOW_TO_BUILD = "run `make build` or `pip install .`"


def _check_extension() -> None:
    """Loads the extension, or raises an ImportError that says why it cannot."""
    if importlib.util.find_spec(f"{__name__}._C") is None:
        raise ImportError(f"torch_remote is not built: {_HOW_TO_BUILD}")
    try:
        from . import _C
    except ImportError as error:
        raise ImportError(
            f"torch_remote does not load into torch {torch.__version__} ({error}); it serves only "
            f"the minor version of torch it was built for: {_HOW_TO_BUILD}"
        ) from error
    if _C.BUILT_FOR_TORCH.split(".")[:2] != torch.__version__.split(".")[:2]:
        raise ImportError(
            f"torch_remote was built for torch {_C.BUILT_FOR_TORCH} and this is torch "
            f"{torch.__version__}: {_HOW_TO_BUILD}"
        )


_check_extension()

from . import (  # noqa: E402
    _C,
    _accelerator,
    _backend,
    _backward,
    _branches,
    _device,
    _downloads,
    _errors,
    _interop,
    _kernels,
    _nested,
    _not_yet,
    _optimizers,
    _parallel,
    _patches,
    _printing,
    _progress,
    _safetensors,
)
from ._errors import ConnectionError, ProtocolError, RemoteError, SessionLost  # noqa: E402
from ._machines import Machine, connect, machines, server_path, synchronize  # noqa: E402
from ._reads import ReadFuture, read  # noqa: E402
from ._stats import Stats, count, stats  # noqa: E402

__all__ = [
    "ConnectionError",
    "Machine",
    "ProtocolError",
    "ReadFuture",
    "RemoteError",
    "SessionLost",
    "Stats",
    "__version__",
    "connect",
    "count",
    "machines",
    "read",
    "stats",
    "synchronize",
]

try:
    __version__ = metadata.version("torch-remote")
except metadata.PackageNotFoundError:  # imported from a build folder
    __version__ = "unknown"


def __dir__() -> list[str]:
    return sorted({*__all__, *(each for each in globals() if each.startswith("_"))})


def _install(name: str) -> None:
    """Registers the backend with PyTorch under a name. The order of the steps matters."""
    _C.set_exception_types(_errors.BY_CLASS, _errors.BY_KIND, _errors.LOCAL_BY_KIND)
    _C.set_library_folders([f"{Path(file).parent}/" for file in (torch.__file__, __file__)])
    _C.set_server_path(str(server_path()))
    _C.init()
    torch.utils.rename_privateuse1_backend(name)
    torch._register_device_module(name, _device)
    for module in ("amp", "memory", "random", "streams"):  # for `import torch.remote.amp`
        sys.modules[f"torch.{name}.{module}"] = getattr(_device, module)
    _change_torch()
    atexit.register(_shut_down)


def _change_torch() -> None:
    """Makes all changes that `_patches.undo_all()` takes back; may be called again after it."""
    with _patches.noting(
        torch.Tensor,
        torch.nn.Module,
        torch.nn.utils.rnn.PackedSequence,
        torch.storage._StorageBase,
        torch.storage.TypedStorage,
    ):
        torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    _printing.install()
    _interop.install()
    _downloads.install()
    _progress.install()
    _safetensors.install()
    _accelerator.install()
    _kernels.install()
    _nested.install()
    _branches.install()
    _backward.install()
    _optimizers.install()
    _parallel.install()
    _not_yet.install()


def _shut_down() -> None:
    # A forked child must not close the sessions of its parent.
    if not _C.is_in_bad_fork():
        _C.shutdown()


def _warn_of_local_cuda() -> None:
    """Warns if there are local GPUs: PyTorch's engine uses our device as the only accelerator."""
    if _backend.local_gpus() > 0:
        warnings.warn(
            f"torch_remote makes `{_backend.name()}` the accelerator of this process, which breaks "
            "autograd on the local CUDA devices in it (a limitation of PyTorch); use "
            f"`{_backend.name()}` for them too, or import torch_remote in another process",
            stacklevel=3,
        )


_install("remote")
_warn_of_local_cuda()
