"""Exit statuses, and the exception that ends a command with one of them."""

from __future__ import annotations

OK = 0
FAILED = 1  # the command did not do what it was asked to; `doctor` found a problem
WRONG_USAGE = 2
UNREACHABLE = 3  # nobody answers at the address
REFUSED = 4  # the server does not accept the token
INTERRUPTED = 130  # Ctrl-C


class CommandError(Exception):
    """A message for the user, and the exit status."""

    def __init__(self, message: str, status: int = FAILED) -> None:
        super().__init__(message)
        self.status = status
