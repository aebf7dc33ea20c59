"""Copies this machine's server to a host over ssh, for `ssh://host?install=1`.

The server needs libtorch, which the host's own torch has. Only the program is copied, to
`~/.cache/torch-remote/<digest>`; what is there already is not copied again.
"""

from __future__ import annotations

import hashlib
import shlex
import subprocess
import sys

from .. import _C, _progress
from .._errors import ConnectionError
from .._machines import present_server_path
from .ssh_errors import explain
from .ssh_words import quoted

_COPY_S = 300

# Finds the host's torch and runs the server with its libraries. A CPU build of the server gets
# torch's CUDA kernels by loading the library that registers them.
_START = """\
#!/bin/sh
torch=$({python} -c 'import importlib.util as u; s = u.find_spec("torch"); \
print(s.submodule_search_locations[0] if s else "")')
if [ -z "$torch" ]; then
  printf 'torch-remote: %s on this host has no torch\\n' {python} >&2
  exit 1
fi
there=$(sed -n "s/^__version__ = '\\([0-9]*\\.[0-9]*\\).*/\\1/p" "$torch/version.py")
if [ "$there" != "{minor}" ]; then
  echo "torch-remote: this server is for torch {minor}, and this host has $there" >&2
  exit 1
fi
export LD_LIBRARY_PATH="$torch/lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"
if [ -e "$torch/lib/libtorch_cuda.so" ]; then export LD_PRELOAD="$torch/lib/libtorch_cuda.so"; fi
exec "$(dirname "$0")/torch-remote-server" "$@"
"""


def install(ssh: list[str], host: str, python: str, connect_s: int) -> str:
    """Copies the server if it is not there yet. Returns the command that runs it on the host.

    `connect_s`: how long ssh may take to connect.
    """
    server = present_server_path().read_bytes()
    start = start_script(python).encode()
    digest = hashlib.sha256(server + start).hexdigest()[:16]
    folder = f"~/.cache/torch-remote/{digest}"
    is_there = f"test -x {folder}/torch-remote && echo yes || {{ mkdir -p {folder}; echo no; }}"
    if _run(ssh, host, is_there, connect_s + 1) == "no":
        _tell(f"copying the server ({len(server) / 2**20:.0f} MiB) to ssh://{host} ...")
        for name, content in (("torch-remote-server", server), ("torch-remote", start)):
            new = f"{folder}/{name}.$$"  # complete, or not there
            copy = f"cat > {new} && chmod 755 {new} && mv -f {new} {folder}/{name}"
            _run(ssh, host, copy, _COPY_S, content)
        _tell(f"the server is on ssh://{host}, in {folder}")
    return f"{folder}/torch-remote"


def start_script(python: str) -> str:
    """A script beside the server that runs it with the torch of this Python."""
    minor = ".".join(_C.BUILT_FOR_TORCH.split(".")[:2])
    return _START.format(python=quoted(python), minor=minor)


def _tell(text: str) -> None:
    if _progress.is_on():
        print(f"torch_remote: {text}", file=sys.stderr, flush=True)


def _run(ssh: list[str], host: str, command: str, seconds: int, content: bytes = b"") -> str:
    try:
        done = subprocess.run(
            [*ssh, f"sh -c {shlex.quote(command)}"],
            input=content,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        why = f"timed out: ssh and `{command}` took more than {seconds} s"
        raise ConnectionError(explain(host, why, why)) from None
    if done.returncode != 0:
        words = done.stderr.decode(errors="replace")
        raise ConnectionError(explain(host, f"ssh://{host}: `{command}` failed there", words))
    return done.stdout.decode(errors="replace").strip()
