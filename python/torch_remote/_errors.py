"""The exceptions of torch_remote, sorted by who has to act (docs/errors.md).

The C++ side raises these very classes: `__init__` hands them over before anything can fail.
"""

from __future__ import annotations

import builtins


class RemoteError(RuntimeError):
    """An operator failed where it ran. Raised when a value it should have made is read."""


class SessionLost(RemoteError):
    """The server, or the way to it, is gone, and with it every tensor that lived there."""


class ProtocolError(RemoteError):
    """The peer sent bytes that are not the protocol. The session is over; the process lives."""


class ConnectionError(RemoteError, builtins.ConnectionError):
    """No session could be made: nobody listens, the token is wrong, the versions do not meet."""
