"""The exceptions of torch_remote, sorted by who has to act (docs/errors.md).

The C++ code raises these classes, too: `__init__` passes them to it.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable

import torch

# What to add to an error that says that this device has too little memory.
hint_for_memory: Callable[[int], str] = lambda device: ""  # noqa: E731
# What to add to an error that says that a machine's session is lost: why, as its provider says.
hint_for_loss: Callable[[int, str], str] = lambda machine, text: ""  # noqa: E731


class RemoteError(RuntimeError):
    """An operator failed on the server. Raised by a later call of the thread that called it."""

    # True: the very call that raises this has failed, and no other.
    is_of_this_call = False


class SessionLost(RemoteError):
    """The session is lost, and with it all tensors on that server."""

    def __init__(self, text: str = "", machine: int | None = None) -> None:
        super().__init__(text + ("" if machine is None else hint_for_loss(machine, text)))


class ProtocolError(RemoteError):
    """The peer sent bytes that break the protocol. The session ends; the process goes on."""


class ConnectionError(RemoteError, builtins.ConnectionError):
    """No session could be opened: nothing listens, or token or version is refused."""


class RemoteIndexError(RemoteError, IndexError):
    """An operator failed that raises an `IndexError` locally. The classes below are alike."""


class RemoteValueError(RemoteError, ValueError):
    pass


class RemoteTypeError(RemoteError, TypeError):
    pass


class RemoteNotImplementedError(RemoteError, NotImplementedError):
    pass


class RemoteOutOfMemoryError(RemoteError, torch.OutOfMemoryError):  # type: ignore[misc]
    def __init__(self, text: str = "") -> None:
        device = re.search(r" on \w+:(\d+)\b", text)
        super().__init__(text + (hint_for_memory(int(device[1])) if device else ""))


class RemoteLinAlgError(RemoteError, torch.linalg.LinAlgError):  # type: ignore[misc]
    pass


class RemoteAcceleratorError(RemoteError, torch.AcceleratorError):  # type: ignore[misc]
    pass


class DeviceLost(SessionLost, torch.AcceleratorError):  # type: ignore[misc]
    """A device assert, or another error after which CUDA no longer works on the server."""


# In the order of client::ErrorClass (src/client/process/errors.h).
BY_CLASS = (RemoteError, SessionLost, ProtocolError, ConnectionError, DeviceLost)

# In the order of wire::ErrorKind (src/wire/messages.h).
BY_KIND = (
    RemoteError,
    RemoteIndexError,
    RemoteValueError,
    RemoteTypeError,
    RemoteNotImplementedError,
    RemoteOutOfMemoryError,
    RemoteError,  # the server refused it
    RemoteLinAlgError,
    RemoteAcceleratorError,
    RemoteError,  # dropped by cancel()
)

# What PyTorch raises locally, in the same order.
LOCAL_BY_KIND = (
    RuntimeError,
    IndexError,
    ValueError,
    TypeError,
    NotImplementedError,
    torch.OutOfMemoryError,
    RuntimeError,
    torch.linalg.LinAlgError,
    torch.AcceleratorError,
    RuntimeError,
)
