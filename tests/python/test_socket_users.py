"""Who listens on a Unix socket: without a token, only this user or root is trusted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers import DEADLINE, serving

import torch_remote

pytestmark = pytest.mark.slow

OTHER = 65534
SQUATTER = """
import os, socket, sys
os.setuid(int(sys.argv[2]))
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o777)
listener.listen()
print("listening", flush=True)
while True:
    listener.accept()[0].close()
"""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


@contextmanager
def squatting(path: Path, user: int) -> Iterator[str]:
    path.parent.chmod(0o777)
    command = [sys.executable, "-c", SQUATTER, str(path), str(user)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as squatter:
        try:
            assert squatter.stdout is not None
            assert squatter.stdout.readline() == "listening\n"
            yield f"unix://{path}"
        finally:
            squatter.kill()


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where every user can make a socket."""
    path = Path(f"/tmp/socket_users_{os.getpid()}")
    path.mkdir()
    try:
        yield path
    finally:
        for left in path.iterdir():
            left.unlink()
        path.rmdir()


# Promise 3c.
@needs_root
def test_another_users_socket_gets_nothing_without_a_token(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_REMOTE_PATIENCE", "0")
    with squatting(folder / "s", OTHER) as url:
        with pytest.raises(torch_remote.ConnectionError) as error:
            torch_remote.connect(url)
        assert f"(uid {OTHER}), and this one to user root (uid 0)" in str(error.value)
        assert "TORCH_REMOTE_TOKEN_FILE" in str(error.value)
        with pytest.raises(torch_remote.ConnectionError) as error:
            torch_remote.connect(url, token="0" * 64)  # which the server must prove to know
        assert f"uid {OTHER}" not in str(error.value)
    with squatting(folder / "own", os.geteuid()) as url:
        with pytest.raises(torch_remote.ConnectionError) as error:  # it hangs up
            torch_remote.connect(url)
        assert "uid" not in str(error.value)


# Promise 3c.
@needs_root
def test_the_figures_of_another_users_socket_are_not_shown(folder: Path) -> None:
    with squatting(folder / "m", OTHER) as url:
        for command in (["status"], ["top", "--json", "--count", "1"]):
            done = subprocess.run(
                [sys.executable, "-m", "torch_remote_cli", *command, "--metrics", url],
                capture_output=True,
                text=True,
                timeout=DEADLINE,
                check=False,
            )
            assert done.returncode == 3, done.stdout + done.stderr
            assert f"(uid {OTHER}) listens there, and this is user root (uid 0)" in done.stderr


def test_the_folder_of_a_socket_is_made_in_the_runtime_folder_and_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    (tmp_path / "run").mkdir(mode=0o700)
    with serving(f"unix://{tmp_path}/run/torch-remote/s"):
        assert (tmp_path / "run" / "torch-remote").stat().st_mode & 0o777 == 0o700
    with serving(f"unix://{tmp_path}/run/torch-remote/s"):
        pass
    for path in ("run/one/two/s", "elsewhere/s"):
        url = f"unix://{tmp_path}/{path}"
        with pytest.raises(AssertionError, match="No such file"), serving(url):
            pass
        assert not (tmp_path / path).parent.exists()
