"""A PyTorch device that is somewhere else: `torch.randn(3, device="remote")`.

Importing this package names PyTorch's private backend `remote`, once for the process, and starts
nothing: the first tensor does.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from torch_remote_cli import note_import, replace_package_run, set_up_run

replace_package_run()

import torch  # noqa: E402

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
            f"{torch.__version__}: install the wheel for this torch, or {_HOW_TO_BUILD}"
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
    _exit,
    _fake_tensors,
    _graphs,
    _interop,
    _kernels,
    _launch,
    _nested,
    _notebook,
    _optimizers,
    _parallel,
    _patches,
    _printing,
    _profiler,
    _progress,
    _warnings,
)
from . import backends as backends  # noqa: E402
from . import distributed as distributed  # noqa: E402
from . import integrations as integrations  # noqa: E402
from . import providers as providers  # noqa: E402
from ._backend_device import (  # noqa: E402
    BackendDevice,
    BackendProvider,
    DeviceRegistry,
    create_device,
    create_modal_device,
    get_device_registry,
)
from ._compile_step import compile_step  # noqa: E402
from ._errors import ConnectionError, ProtocolError, RemoteError, SessionLost  # noqa: E402
from ._explain import Explanation, explain  # noqa: E402
from ._files import RemoteArray, ServerFile, array, files, load  # noqa: E402
from ._gpus import GPUChoice, GPUType, choose_gpu  # noqa: E402
from ._graphs import Graph  # noqa: E402
from ._machines import Machine, cancel, connect, machines, server_path, synchronize  # noqa: E402
from ._reads import ReadFuture, read  # noqa: E402
from ._stats import Stats, count, stats  # noqa: E402
from ._waits import Waits, WaitTable, waits, waits_by_line  # noqa: E402
from .integrations.generation import stop_check_every  # noqa: E402

__all__ = [
    "BackendDevice",
    "BackendProvider",
    "ConnectionError",
    "DeviceRegistry",
    "Explanation",
    "GPUChoice",
    "GPUType",
    "Graph",
    "Machine",
    "ProtocolError",
    "ReadFuture",
    "RemoteArray",
    "RemoteError",
    "ServerFile",
    "SessionLost",
    "Stats",
    "WaitTable",
    "Waits",
    "__version__",
    "array",
    "backends",
    "cancel",
    "choose_gpu",
    "compile_step",
    "connect",
    "count",
    "create_device",
    "create_modal_device",
    "distributed",
    "explain",
    "files",
    "get_device_registry",
    "integrations",
    "load",
    "machines",
    "providers",
    "read",
    "stats",
    "stop_check_every",
    "synchronize",
    "waits",
    "waits_by_line",
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
    here = Path(__file__).parent
    ours = [here, *(here.parent / each for each in ("TorchDevice", "torch_remote_patches"))]
    _C.set_library_folders([f"{folder}/" for folder in (Path(torch.__file__).parent, *ours)])
    _C.set_server_path(str(server_path()))
    _C.set_start(_launch.start)
    _C.set_show_warning(_warnings.show)
    _C.init()
    torch.utils.rename_privateuse1_backend(name)
    _C.register_graphs()
    torch._register_device_module(name, _device)
    for module in ("amp", "memory", "random", "streams"):  # for `import torch.remote.amp`
        sys.modules[f"torch.{name}.{module}"] = getattr(_device, module)
    _change_torch()
    _exit.install()


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
    integrations.install()
    _accelerator.install()
    _kernels.install()
    _nested.install()
    _branches.install()
    _fake_tensors.install()
    _backward.install()
    _optimizers.install()
    _graphs.install()
    _parallel.install()
    _profiler.install()
    distributed._install()
    for change in _also:
        change()


_also: list[Callable[[], None]] = []


def _also_change(change: Callable[[], None]) -> None:
    """For torch_modal: makes its changes to torch, now and whenever ours are made again."""
    _also.append(change)
    change()


def _warn_of_local_cuda() -> None:
    """Warns if there are local GPUs: PyTorch's engine uses our device as the only accelerator."""
    if _backend.local_gpus() > 0:
        warnings.warn(
            f"torch_remote makes `{_backend.name()}` the accelerator of this process, which breaks "
            "autograd on the local CUDA devices in it (a limitation of PyTorch); use "
            f"`{_backend.name()}` for them too, or import torch_remote in another process",
            stacklevel=3,
        )


def _tell_redirect() -> None:
    """TorchDevice, if it was imported earlier, uses this device from now on."""
    redirect = sys.modules.get("TorchDevice._state")
    if redirect is not None:
        redirect.look_again()


# The package that the program imports first chooses the name: torch_modal imports this one.
_install("modal" if "torch_modal" in sys.modules else "remote")
_warn_of_local_cuda()
_tell_redirect()
_notebook.watch_cells()
note_import()
set_up_run()
