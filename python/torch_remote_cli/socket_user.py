"""Who listens on a Unix socket."""

from __future__ import annotations

import os
import pwd
import socket
import struct
import sys

# macOS: the option of getpeereid(), whose answer begins with a version and the user.
_LOCAL_PEERCRED = 0x001


class AnotherUser(PermissionError):
    """Another user listens there, who is not root. Names that user and this one."""

    def __init__(self, listener: int) -> None:
        own = os.geteuid()
        super().__init__(
            f"{describe_user(listener)} listens there, and this is {describe_user(own)}"
        )
        self.listener = listener


def describe_user(user: int) -> str:
    try:
        return f"user {pwd.getpwuid(user).pw_name} (uid {user})"
    except KeyError:
        return f"a user without a name (uid {user})"


def user_of(connected: socket.socket) -> int:
    if sys.platform == "darwin":
        return int(struct.unpack("II", connected.getsockopt(0, _LOCAL_PEERCRED, 8))[1])
    peer = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)  # struct ucred
    return int(struct.unpack("iII", peer)[1])


def check_user(connected: socket.socket) -> None:
    """Raises AnotherUser unless this user or root listens at the other end."""
    listener = user_of(connected)
    if listener not in (os.geteuid(), 0):
        raise AnotherUser(listener)
