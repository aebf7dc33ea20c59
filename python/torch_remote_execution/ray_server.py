"""What a Ray actor runs: one server, as a child process.

Ray sends this module by value, so a node needs neither this package nor torch_remote; it needs the
command that it is given.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any


class Server:
    """Ends with its server, and the server with it: then Ray has the GPU again."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="torch-remote-")
        self._log = Path(self._folder.name) / "log"
        self._process: subprocess.Popen[str] | None = None

    def start(self, command: list[str], token: str) -> tuple[str, str]:
        """The server's URL; or "" and what it has printed, if it does not start."""
        folder = Path(self._folder.name)
        token_file = folder / "token"
        token_file.touch(mode=0o600)
        token_file.write_text(token)
        words = [*command, "--listen", f"tls://{_address()}:0", "--token-file", str(token_file)]
        words += ["--parent-pid", str(os.getpid())]
        environment = {**os.environ, "XDG_STATE_HOME": str(folder)}
        try:
            self._process = subprocess.Popen(
                words,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=self._log.open("a"),
                text=True,
            )
        except OSError as error:
            return "", f"{shlex.join(command)}: {error.strerror}"
        assert self._process.stdout is not None
        said = re.match(r"listening on (\S+)", self._process.stdout.readline())
        if said is None:
            self._process.wait()
            return "", self.log()
        threading.Thread(target=self._end_with_it, daemon=True).start()
        # The printed URL has the machine's name, which others may not know; the pin is enough.
        return re.sub(r"//[^/?]*:(\d+)", rf"//{_address()}:\1", said[1]), ""

    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def _end_with_it(self) -> None:
        assert self._process is not None
        self._process.wait()
        self._folder.cleanup()
        os._exit(0)


def _address() -> str:
    import ray

    return str(ray.util.get_node_ip_address())


def actor_class() -> Any:
    """`Server` as a class of Ray actors."""
    import sys

    import ray
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    return ray.remote(Server)
