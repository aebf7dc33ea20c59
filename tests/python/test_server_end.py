"""Why a server has ended reaches its clients, and who has closed a connection is named."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest
import torch
from helpers import serving, wait_until

import torch_remote
from torch_remote._machines import Machine, connect_through, server_path

pytestmark = pytest.mark.slow

Start = Callable[..., AbstractContextManager[Machine]]


@contextmanager
def listening(folder: Path, *options: str) -> Iterator[Machine]:
    with serving(f"unix://{folder}/s", *options) as url:
        yield torch_remote.connect(url)


@contextmanager
def over_stdio(folder: Path, *options: str) -> Iterator[Machine]:
    """As a provider's command, which a shell runs."""
    yield connect_through("ssh://box", ["sh", "-c", 'exec "$@"', "sh", *serve(*options)])


def serve(*options: str) -> list[str]:
    return [str(server_path()), "serve", "--stdio", *options]


@pytest.mark.parametrize("start", [listening, over_stdio])
@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--idle-timeout", "nobody has used it for its --idle-timeout of"),
        ("--max-lifetime", "it has reached its --max-lifetime of"),
    ],
)
def test_a_server_that_ends_by_itself_says_why(
    option: str, words: str, start: Start, tmp_path: Path
) -> None:
    for limit in ("1s", "5s", "30s"):  # on a busy machine it may end before it is connected
        with suppress(torch_remote.ConnectionError), start(tmp_path, option, limit) as machine:
            x = torch.ones(2, device=machine.devices[0])
            assert wait_until(lambda machine=machine: machine.status()["state"] == "lost")
            with pytest.raises(torch_remote.SessionLost) as raised:
                x.tolist()
            machine.stop()
            assert f"the server has ended by itself: {words} {limit}" in str(raised.value)
            return
    pytest.fail("no client was served within 30 s")


def test_the_end_of_a_command_is_told_with_the_url_of_its_machine(tmp_path: Path) -> None:
    with over_stdio(tmp_path, "--lease", "0") as machine:
        x = torch.ones(2, device=machine.devices[0])
        assert x.tolist() == [1, 1]
        os.kill(int(machine.status()["pid"]), signal.SIGKILL)
        with pytest.raises(torch_remote.SessionLost) as raised:
            assert wait_until(lambda: x.tolist() != [1, 1])
        # Where the launcher was killed, that is told first.
        lost = (
            r" is lost: (the command .* )?\(?(ssh://box closed|(reading from|writing to) ssh://box)"
        )
        assert re.search(lost, str(raised.value))
        machine.stop()
