"""The exceptions of torch_remote, sorted by who has to act (docs/errors.md).

The C++ side raises these very classes: `__init__` hands them over before anything can fail.
"""

from __future__ import annotations

import builtins

import torch


class RemoteError(RuntimeError):
    """An operator failed where it ran. Raised by a later call of the thread that called it."""


class SessionLost(RemoteError):
    """The server, or the way to it, is gone, and with it every tensor that lived there."""


class ProtocolError(RemoteError):
    """The peer sent bytes that are not the protocol. The session is over; the process lives."""


class ConnectionError(RemoteError, builtins.ConnectionError):
    """No session could be made: nobody listens, the token is wrong, the versions do not meet."""


class RemoteIndexError(RemoteError, IndexError):
    """A failed operator that raises an `IndexError` locally; those below likewise."""


class RemoteValueError(RemoteError, ValueError):
    pass


class RemoteTypeError(RemoteError, TypeError):
    pass


class RemoteNotImplementedError(RemoteError, NotImplementedError):
    pass


class RemoteOutOfMemoryError(RemoteError, torch.OutOfMemoryError):  # type: ignore[misc]
    pass


class RemoteLinAlgError(RemoteError, torch.linalg.LinAlgError):  # type: ignore[misc]
    pass


class RemoteAcceleratorError(RemoteError, torch.AcceleratorError):  # type: ignore[misc]
    pass


class DeviceLost(SessionLost, torch.AcceleratorError):  # type: ignore[misc]
    """A device assert, or another error after which CUDA does nothing more in that process."""


# In the order of client::ErrorClass (src/client/session/errors.h).
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
)

# The same, as PyTorch raises them locally.
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
)
