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
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

NAMESPACE = "torch-remote"  # of Ray, for the names of actors
KEPT_BYTES = 64 << 10  # of a log


class Server:
    """Ends with its server, and the server with it: then Ray has the GPU again."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="torch-remote-")
        self._log = Path(self._folder.name) / "log"
        self._process: subprocess.Popen[str] | None = None

    def start(
        self, command: list[str], token: str, names: list[str], index: int
    ) -> tuple[str, str]:
        """The server's URL; or "" and what it has printed, if it does not start.

        `names` are those of the actors of the machine, and this is the one at `index`.
        """
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
        threading.Thread(target=self._end_with_it, args=_place(names, index), daemon=True).start()
        # The printed URL has the machine's name, which others may not know; the pin is enough.
        return re.sub(r"//[^/?]*:(\d+)", rf"//{_address()}:\1", said[1]), ""

    def log(self) -> str:
        """The end of what it has printed."""
        if not self._log.exists():
            return ""
        with self._log.open("rb") as file:
            file.seek(max(0, self._log.stat().st_size - KEPT_BYTES))
            return file.read(KEPT_BYTES).decode(errors="replace")

    def _end_with_it(self, group: Any, earlier: list[str], later: list[str]) -> None:
        assert self._process is not None
        self._process.wait()
        self._folder.cleanup()
        with suppress(Exception):
            _give_back(group, earlier, later)
        os._exit(0)


# How long an actor waits for the later ones of its machine, so that of servers that end at the same
# time exactly one is the last: the earliest.
WAIT_S = 10


def _place(names: list[str], index: int) -> tuple[Any, list[str], list[str]]:
    import ray

    return ray.util.get_current_placement_group(), names[:index], names[index + 1 :]


def _give_back(group: Any, earlier: list[str], later: list[str]) -> None:
    """The last actor of a machine removes its placement group, which else keeps the GPUs."""
    from ray.util.placement_group import remove_placement_group

    end = time.monotonic() + WAIT_S
    while _are_there(later) and time.monotonic() < end:
        time.sleep(0.2)
    if group is not None and not _are_there([*earlier, *later]):
        remove_placement_group(group)


def _are_there(names: list[str]) -> bool:
    import ray

    for each in names:
        with suppress(ValueError):  # it has ended
            ray.get_actor(each, namespace=NAMESPACE)
            return True
    return False


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
