"""The token of the page: 256 random bits in a file that only its owner can read."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from .errors import CommandError


def default_path() -> Path:
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local/state") / "torch-remote" / "page-token"


def read_or_make(path: Path) -> str:
    """Makes no folder but that of the default path: another one may be written wrong."""
    try:
        if path == default_path():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return _read(path)
    except FileNotFoundError as error:
        raise CommandError(
            f"cannot make the token file {path}: there is no folder {path.parent}"
        ) from error
    except OSError as error:
        raise CommandError(f"cannot make the token file {path}: {error.strerror}") from error
    token = secrets.token_hex(32)
    with os.fdopen(handle, "w") as file:
        file.write(f"{token}\n")
    return token


def _read(path: Path) -> str:
    try:
        token = path.read_text().strip()
        mode = stat.S_IMODE(path.stat().st_mode)
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"cannot read the token file {path}: {error}") from error
    if mode & 0o077:
        raise CommandError(f"{path} can be read by other users: run `chmod 600 {path}`")
    if not token or not token.isascii() or len(token) < 16:
        raise CommandError(f"{path} has no token of at least 16 characters; remove it to make one")
    return token
