"""The open connections of the page's server."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

MOST = 64
PATIENCE = 5.0  # seconds for a connection that is ended to be gone


class Connections:
    """At most `most` at a time. Thread-safe.

    A new one always gets a place: the oldest whose sender has shown no token is ended for it, so
    that who has none does not shut out who has one.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._changed = threading.Condition()
        self._open: dict[socket.socket, bool] = {}  # in their order; whether a token was shown

    def add(self, connection: socket.socket) -> bool:
        """False if no other connection ended in time; the caller then closes this one."""
        with self._changed:
            if len(self._open) >= self._most:
                self._end_one()
            has_place = self._changed.wait_for(lambda: len(self._open) < self._most, PATIENCE)
            if has_place:
                self._open[connection] = False
            return has_place

    def note_token(self, connection: socket.socket) -> None:
        with self._changed:
            if connection in self._open:
                self._open[connection] = True

    def remove(self, connection: socket.socket) -> None:
        with self._changed:
            self._open.pop(connection, None)
            self._changed.notify()

    def _end_one(self) -> None:
        unknown = (each for each, has_token in self._open.items() if not has_token)
        victim = next(unknown, None) or next(iter(self._open))
        with suppress(OSError):  # the peer has closed it
            victim.shutdown(socket.SHUT_RDWR)  # its thread wakes, and removes it
