"""What ssh's errors mean, and what to do about them."""

from __future__ import annotations

import re

from torch_remote_cli.output import printable

from .ssh_words import destination

# What ssh or the host's shell says, and what to do about it.
ADVICE = (
    (r"Could not resolve hostname", "check the host's name, or add it to ~/.ssh/config"),
    (
        r"Permission denied",
        "`{by_hand}` must work without a password: load your key into ssh-agent, or add it with "
        "ssh-copy-id",
    ),
    (r"Host key verification failed", "run `{by_hand}` once and compare its key"),
    (
        r"Connection refused|timed out|No route to host",
        "check that the host is up and that sshd listens on that port; ssh://{host}?timeout=30 "
        "waits longer",
    ),
    (
        r"on this host has no torch|this server is for torch",
        "name the host's Python that has this torch, such as "
        "ssh://{host}?install=1&python=~/venv/bin/python, or install it there",
    ),
    (
        r"error while loading shared libraries|undefined symbol",
        "the server there needs the minor version of torch that it was built for: install "
        "torch-remote on the host again, in the environment that has torch",
    ),
    (
        r"torch-remote-server is not installed|no module named .?torch_remote",
        "install torch-remote on the host again, or use ssh://{host}?install=1",
    ),
    (
        r"(torch-remote|command).*not found|not found.*torch-remote|No such file or directory",
        "torch-remote is not on the host's PATH: install it there, name it with "
        "ssh://{host}?command=/path/to/torch-remote, or let ssh://{host}?install=1 copy this "
        "machine's server to the host",
    ),
)


def explain(host: str, error: str, log: str) -> str:
    """Why ssh or the host's server failed, in their words, and what to do."""
    user_and_host, port = destination(host) or (host, "")
    by_hand = f"ssh -p {port} {user_and_host}" if port else f"ssh {user_and_host}"
    said = " ".join(line.strip() for line in log.splitlines()[-5:] if line.strip())
    words = printable(said).removesuffix(".")
    for pattern, advice in ADVICE:
        if re.search(pattern, log, re.IGNORECASE):
            return f"ssh://{host}: {words}. What to do: {advice.format(host=host, by_hand=by_hand)}"
    if not words and "exit status 255" in error:  # of ssh itself
        said = "ssh ended with exit status 255 and said nothing"
        return f"ssh://{host}: {said}. What to do: run `{by_hand}` by hand, which must work"
    return f"{error} (ssh said: {words})" if words else error
