"""What an ssh:// URL says, and words of a command line: its host, and a path for the host's shell.

Imports nothing of ours: `torch-remote run` checks a URL by this file alone, before torch is
imported.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

OPTIONS = ("command", "config", "device", "install", "lease", "python", "timeout")
CONNECT_S = 8

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


def check(url: str, host: str, options: Mapping[str, str]) -> None:
    """ValueError if the parts of the URL cannot be those of a machine."""
    if destination(host) is None:
        raise ValueError(f"{url!r} names no host: write ssh://[user@]host[:port]")
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise ValueError(f"{url}: no option {unknown[0]!r}; there are {', '.join(OPTIONS)}")
    seconds = options.get("timeout", str(CONNECT_S))
    if not seconds.isdecimal() or int(seconds) == 0:
        raise ValueError(f"{url}: timeout is a number of seconds, not {seconds!r}")


def quoted(command: str) -> str:
    """For the host's shell, which still expands `~/`."""
    if command.startswith("~/"):
        return "~/" + shlex.quote(command[2:])
    return shlex.quote(command)
