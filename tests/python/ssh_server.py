"""A real sshd on loopback."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers import DEADLINE, wait_until

# Of the machine, or unpacked by `make setup-programs`.
UNPACKED = Path(__file__).resolve().parents[2] / "build" / "programs" / "usr"
SSHD = shutil.which("sshd", path=f"/usr/sbin:/usr/local/sbin:/sbin:{UNPACKED / 'sbin'}")


@contextmanager
def running_sshd(folder: Path) -> Iterator[str]:
    """A real sshd, as the tests' user. Returns the URL of its host."""
    if SSHD is None:
        pytest.skip("there is no sshd on this machine: make setup-programs")
    if os.geteuid() != 0:
        pytest.skip("only root can give sshd its /run/sshd in a mount namespace of its own")
    for name in ("host", "user"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True
        )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (folder / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1\nPort {port}\nHostKey {folder}/host\n"
        f"AuthorizedKeysFile {folder}/user.pub\nPidFile {folder}/pid\n"
        "UsePAM no\nStrictModes no\nPermitRootLogin prohibit-password\n"
    )
    key = (folder / "host.pub").read_text()
    (folder / "known").write_text(f"[127.0.0.1]:{port} {key}")
    (folder / "ssh_config").write_text(
        f"IdentityFile {folder}/user\nIdentitiesOnly yes\nUserKnownHostsFile {folder}/known\n"
    )
    # sshd wants a folder and a user of its own; it gets them in a mount namespace of its own.
    users = Path("/etc/passwd").read_text()
    (folder / "passwd").write_text(users + "sshd:x:64999:65534::/run/sshd:/usr/sbin/nologin\n")
    start = (
        f"mount --bind {folder}/passwd /etc/passwd && mount -t tmpfs none /run && "
        f"mkdir -m 755 /run/sshd && exec {SSHD} -D "
        f"-f {folder}/sshd_config -E {folder}/sshd.log"
    )
    libraries = ":".join(map(str, UNPACKED.glob("lib/*-linux-gnu")))
    server = subprocess.Popen(
        ["unshare", "-m", "sh", "-c", start], env=os.environ | {"LD_LIBRARY_PATH": libraries}
    )
    try:
        wait_until(lambda: (folder / "pid").exists() or server.poll() is not None)
        assert server.poll() is None, (folder / "sshd.log").read_text()
        yield f"ssh://{getpass.getuser()}@127.0.0.1:{port}?config={folder}/ssh_config&timeout=60"
    finally:
        server.terminate()
        server.wait(DEADLINE)
