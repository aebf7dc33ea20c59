"""Copies this machine's server to a host over ssh, for `ssh://host?install=1`.

The server needs libtorch, which the host's own torch has. Only the program is copied, to
`~/.cache/torch-remote/<digest>`; what is there already is not copied again.
"""

from __future__ import annotations

import hashlib
import shlex
import subprocess

from .. import _C
from .._errors import ConnectionError
from .._machines import server_path
from .ssh_errors import explain

_PATIENCE_S = 300

# Finds the host's torch and runs the server with its libraries. A CPU build of the server gets
# torch's CUDA kernels by loading the library that registers them.
_START = """\
#!/bin/sh
torch=$({python} -c 'import importlib.util as u; s = u.find_spec("torch"); \
print(s.submodule_search_locations[0] if s else "")')
if [ -z "$torch" ]; then
  echo "torch-remote: {python} on this host has no torch" >&2
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


def start_script(python: str) -> str:
    """A script beside the server that runs it with the torch of this Python."""
    minor = ".".join(_C.BUILT_FOR_TORCH.split(".")[:2])
    return _START.format(python=shlex.quote(python), minor=minor)


def install(ssh: list[str], host: str, python: str) -> str:
    """Copies the server if it is not there yet. Returns the command that runs it on the host."""
    server = server_path().read_bytes()
    start = start_script(python).encode()
    digest = hashlib.sha256(server + start).hexdigest()[:16]
    folder = f"~/.cache/torch-remote/{digest}"
    if _run(ssh, host, f"test -x {folder}/torch-remote && echo yes || echo no") == "no":
        _run(ssh, host, f"mkdir -p {folder}")
        for name, content in (("torch-remote-server", server), ("torch-remote", start)):
            new = f"{folder}/{name}.$$"  # complete, or not there
            _run(
                ssh,
                host,
                f"cat > {new} && chmod 755 {new} && mv -f {new} {folder}/{name}",
                content,
            )
    return f"{folder}/torch-remote"


def _run(ssh: list[str], host: str, command: str, content: bytes = b"") -> str:
    done = subprocess.run(
        [*ssh, f"sh -c {shlex.quote(command)}"],
        input=content,
        capture_output=True,
        timeout=_PATIENCE_S,
        check=False,
    )
    if done.returncode != 0:
        words = done.stderr.decode(errors="replace")
        raise ConnectionError(explain(host, f"ssh://{host}: `{command}` failed there", words))
    return done.stdout.decode(errors="replace").strip()
