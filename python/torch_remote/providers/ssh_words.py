"""Words of a command line: the host of a URL for ssh, and a path for the host's shell."""

from __future__ import annotations

import re
import shlex

# ssh puts both into commands of the user's configuration, such as ProxyCommand, so they have only
# characters that mean nothing to a shell, and do not begin as an option does.
_WORD = r"[A-Za-z0-9._%][A-Za-z0-9._%-]*"
_HOST = re.compile(
    rf"(?P<user>{_WORD}@)?(?:\[(?P<address>[0-9A-Fa-f:.]+(?:%{_WORD})?)\]|(?P<name>{_WORD}))"
    r"(?::(?P<port>\d+))?/?"
)


def destination(host: str) -> tuple[str, str] | None:
    """What ssh takes as `[user@]host`, and the port or ""; None if the text names no host."""
    match = _HOST.fullmatch(host)
    if match is None:
        return None
    return (match["user"] or "") + (match["address"] or match["name"]), match["port"] or ""


def quoted(command: str) -> str:
    """For the host's shell, which still expands `~/`."""
    if command.startswith("~/"):
        return "~/" + shlex.quote(command[2:])
    return shlex.quote(command)
