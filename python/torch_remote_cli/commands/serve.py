"""Runs a server here. Its options are those of the server's program."""

from __future__ import annotations

import os

from .. import server_program
from ..errors import CommandError


def serve(arguments: list[str]) -> int:
    """Becomes the server: signals and the exit status are the server's own."""
    server = server_program.find()
    if server is None:
        raise CommandError(server_program.MISSING)
    os.execv(server, [str(server), *arguments])
