"""Runs a server here. Its options are those of the server's program."""

from __future__ import annotations

import os

from .. import server_program
from ..errors import WRONG_USAGE, CommandError


def serve(arguments: list[str]) -> int:
    """Becomes the server: signals and the exit status are the server's own."""
    check(arguments)
    server = server_program.find()
    if server is None:
        raise CommandError(server_program.MISSING)
    os.execv(server, [str(server), *arguments])


def check(arguments: list[str]) -> None:
    """Refuses empty values, which the server would read as options that are not given."""
    if {"--help", "-h"} & set(arguments):
        return
    for option, value in zip(["", *arguments], arguments, strict=False):
        name, is_assigned, assigned = value.partition("=")
        if value == "" and not option.startswith("-"):
            raise CommandError("an argument of serve is empty", WRONG_USAGE)
        if value == "" or (name.startswith("--") and is_assigned and not assigned):
            raise CommandError(f"the value of {name or option} is empty", WRONG_USAGE)
    if "--resume" in arguments and "--stdio" not in arguments:
        raise CommandError("--resume is for --stdio", WRONG_USAGE)
