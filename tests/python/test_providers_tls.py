"""Servers on tls://: the printed address, pins, certificates of both ends, and clear errors.

What a bad network does to them is in tests/fault/test_tls.py.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from certificates import Identity, make_authority, make_signed
from helpers import DEADLINE, assert_runs, serving

import torch_remote

PREAMBLE = 32


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("TORCH_REMOTE_TOKEN", raising=False)
    monkeypatch.setenv("TORCH_REMOTE_TOKEN_FILE", str(tmp_path / "token"))


@pytest.fixture
def token(tmp_path: Path) -> tuple[str, str]:
    return "--token-file", str(tmp_path / "token")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    return make_authority(tmp_path_factory.mktemp("authority"))


def assert_serves(url: str) -> None:
    with torch_remote.connect(url) as machine:
        x = torch.arange(4, device=machine.devices[0])
        assert (x + 1).tolist() == [1, 2, 3, 4]


def error_of(url: str) -> str:
    """The error of a connection that must fail soon: it is not tried again."""
    begin = time.monotonic()
    with pytest.raises(torch_remote.ConnectionError) as raised:
        assert_serves(url)
    assert time.monotonic() - begin < 30
    message = str(raised.value).strip()
    assert "\n" not in message
    return message


def refusal_of(*options: str, status: int = 2) -> str:
    command = [sys.executable, "-m", "torch_remote_cli", "serve", "--listen", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == status
    return done.stderr


def port_of(url: str) -> str:
    match = re.match(r"\w+://[^/]*:(\d+)", url)
    assert match
    return match[1]


# Promise 3a.
def test_the_printed_address_is_all_that_a_client_needs(
    token: tuple[str, str], tmp_path: Path
) -> None:
    with serving("tls://127.0.0.1:0", *token) as url:
        assert re.fullmatch(r"tls://127\.0\.0\.1:\d+\?pin=[\w-]{43}", url)
        assert_serves(url)
        assert_serves(url)
    made = tmp_path / "state/torch-remote/tls.pem"
    assert made.stat().st_mode & 0o777 == 0o600
    assert made.parent.stat().st_mode & 0o777 == 0o700
    assert [file.name for file in made.parent.iterdir()] == ["tls.pem"]
    with serving("tls://127.0.0.1:0", *token) as again:
        assert again.partition("?")[2] == url.partition("?")[2]  # the certificate is kept


def test_a_copy_of_many_bytes_arrives(token: tuple[str, str]) -> None:
    with serving("tls://127.0.0.1:0", *token) as url, torch_remote.connect(url) as machine:
        x = torch.randint(256, (20_000_003,), dtype=torch.uint8)
        assert torch.equal(x.to(machine.devices[0]).cpu(), x)


# Promise 3a.
def test_another_pin_is_an_error_that_shows_both(token: tuple[str, str]) -> None:
    with serving("tls://127.0.0.1:0", *token) as url:
        wrong = "A" * 43
        message = error_of(f"{url.partition('=')[0]}={wrong}")
        assert f"pin={wrong}" in message
        assert url.partition("?")[2] in message
        assert_serves(url)


# Promise 3a.
def test_without_a_pin_a_certificate_that_it_made_itself_is_refused(
    token: tuple[str, str],
) -> None:
    with serving("tls://127.0.0.1:0", *token) as url:
        assert "?pin=PIN" in error_of(url.partition("?")[0])


# Promise 1.
def test_a_token_is_needed_too(token: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--token-file" in refusal_of("tls://127.0.0.1:0")
    with serving("tls://127.0.0.1:0", *token) as url:
        monkeypatch.delenv("TORCH_REMOTE_TOKEN_FILE")
        assert "the server wants a token" in error_of(url)
        monkeypatch.setenv("TORCH_REMOTE_TOKEN", "not-the-token-not-the-token")
        assert "does not know this token" in error_of(url)


# Promise 1.
def test_beyond_loopback_there_is_only_tls(token: tuple[str, str]) -> None:
    message = refusal_of("tcp://0.0.0.0:0", *token)
    assert "--listen tls://0.0.0.0:0" in message
    assert "--listen tls://0.0.0.0:0" in refusal_of("tcp://0.0.0.0:0")  # not: add a token
    assert "--token-file" in message
    assert "--token-file" in refusal_of("tls://0.0.0.0:0")


def test_a_server_on_every_address_prints_the_name_of_its_machine(
    token: tuple[str, str],
) -> None:
    alone = ["unshare", "--map-root-user", "--net"]  # a network of its own, with no way out
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("unshare cannot make a network namespace here")
    command = [sys.executable, "-m", "torch_remote_cli", "serve", "--listen", "tls://0.0.0.0:4711"]
    with subprocess.Popen([*alone, *command, *token], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        server.terminate()
    assert line.startswith(f"listening on tls://{socket.gethostname()}:4711?pin="), line


def test_clients_and_servers_that_do_not_agree_on_tls_say_so(token: tuple[str, str]) -> None:
    with serving("tls://127.0.0.1:0", *token) as url:
        message = error_of(f"tcp://127.0.0.1:{port_of(url)}")
        assert "connect to tls://" in message
    with serving("tcp://127.0.0.1:0", *token) as url:
        message = error_of(f"tls://127.0.0.1:{port_of(url)}")
        assert "no TLS is spoken there" in message
        assert "tcp://" in message


# Promise 3a.
def test_a_certificate_of_an_authority_is_checked_by_name_and_date(
    token: tuple[str, str], authority: Identity, tmp_path: Path
) -> None:
    good = make_signed(authority, tmp_path, "good", hosts="DNS:localhost,IP:127.0.0.1")
    old = make_signed(authority, tmp_path, "old", hosts="DNS:localhost,IP:127.0.0.1", days=-1)
    other = make_signed(authority, tmp_path, "other", hosts="DNS:gpu-box.example")

    def serve(identity: Identity) -> tuple[str, ...]:
        return *token, "--cert", str(identity.cert), "--key", str(identity.key)

    with serving("tls://127.0.0.1:0", *serve(good)) as url:
        assert_serves(url)
        assert_serves(f"tls://127.0.0.1:{port_of(url)}?ca={authority.cert}")
        assert_serves(f"tls://localhost:{port_of(url)}?ca={authority.cert}")
        assert "no authority" in error_of(f"tls://127.0.0.1:{port_of(url)}")
    with serving("tls://127.0.0.1:0", *serve(old)) as url:
        assert "has expired" in error_of(f"tls://127.0.0.1:{port_of(url)}?ca={authority.cert}")
        assert_serves(url)  # a pin is enough
    with serving("tls://127.0.0.1:0", *serve(other)) as url:
        message = error_of(f"tls://localhost:{port_of(url)}?ca={authority.cert}")
        assert "is for gpu-box.example, not for localhost" in message


# Promise 3a.
def test_clients_can_be_asked_for_a_certificate(
    token: tuple[str, str], authority: Identity, tmp_path: Path
) -> None:
    client = make_signed(authority, tmp_path, "client")
    stranger = make_signed(make_authority(tmp_path, "another"), tmp_path, "stranger")
    with serving("tls://127.0.0.1:0", *token, "--client-ca", str(authority.cert)) as url:
        message = error_of(url)
        assert "wants a certificate of this client" in message
        assert "cert=FILE" in message
        message = error_of(f"{url}&cert={stranger.cert}&key={stranger.key}")
        assert "refuses this side's certificate" in message
        assert_serves(f"{url}&cert={client.cert}&key={client.key}")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--cert", "/is/not/there"), "/is/not/there"),
        (("--key", "/is/not/there"), "--key needs --cert"),
        (("--client-ca", "/is/not/there"), "/is/not/there"),
    ],
)
def test_files_that_cannot_be_used_are_named(
    options: tuple[str, ...], words: str, token: tuple[str, str]
) -> None:
    status = 2 if "needs" in words else 1
    assert words in refusal_of("tls://127.0.0.1:0", *token, *options, status=status)


def test_a_file_without_a_key_or_a_certificate_is_told_as_that(
    token: tuple[str, str], tmp_path: Path
) -> None:
    identity = make_authority(tmp_path)
    for options, words in (
        (("--cert", str(identity.cert)), f"no private key in '{identity.cert}': name the PEM"),
        (("--cert", str(identity.key)), f"there is no certificate in '{identity.key}'"),
    ):
        said = refusal_of("tls://127.0.0.1:0", *token, *options, status=1)
        assert words in said and "unsupported" not in said
    with pytest.raises(ValueError, match=r"no private key in .* with key=FILE in the address"):
        torch_remote.connect(f"tls://127.0.0.1:1?cert={identity.cert}")


def test_options_in_the_wrong_place_are_refused(token: tuple[str, str], tmp_path: Path) -> None:
    assert "--listen tls://" in refusal_of(f"unix://{tmp_path}/s", "--cert", "x")
    assert "for clients" in refusal_of("tls://127.0.0.1:0?pin=" + "A" * 43, *token)
    for url in ("tls://host:1?cert=/is/not/there", "tls://host"):
        with pytest.raises(ValueError, match=r"(/is/not/there|port)"):
            torch_remote.connect(url)


@pytest.mark.parametrize("pin", ["short", "A" * 42, "A" * 44, "A" * 42 + "/", "zz" * 32, "%41"])
def test_a_pin_of_a_wrong_form_is_a_value_error_that_shows_the_form(pin: str) -> None:
    with pytest.raises(ValueError, match="43 letters, digits") as raised:
        torch_remote.connect(f"tls://127.0.0.1:1?pin={pin}")
    assert "tls://host:port?pin=PIN" in str(raised.value)


@pytest.mark.parametrize("url", ["tls://127.0.0.1:1?pin=short", "tcp://127.0.0.1"])
def test_the_first_tensor_raises_a_value_error_for_a_wrong_url(url: str) -> None:
    code = """
        import torch, torch_remote
        try:
            torch.ones(1, device="remote")
        except ValueError as error:
            print(error)
    """
    assert "://host:port" in assert_runs(code, TORCH_REMOTE=url)


class ManInTheMiddle:
    """Ends TLS with a certificate of its own and speaks TLS of its own to the real server."""

    def __init__(self, server: str, own: Identity) -> None:
        self._port = int(port_of(server))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._here = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._here.load_cert_chain(own.cert, own.key)
        self._there = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._there.check_hostname = False
        self._there.verify_mode = ssl.CERT_NONE
        self.port = self._listener.getsockname()[1]
        self.seen = bytearray()  # what the client sent, decrypted
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        with suppress(OSError):
            server = socket.create_connection(("127.0.0.1", self._port))
            server.sendall(client.recv(PREAMBLE, socket.MSG_WAITALL))
            near = self._here.wrap_socket(client, server_side=True)
            far = self._there.wrap_socket(server)
            near.settimeout(0.05)
            far.settimeout(0.05)
            while True:
                for source, target in ((near, far), (far, near)):
                    with suppress(TimeoutError):
                        data = source.recv(65536)
                        if not data:
                            return
                        if source is near:
                            self.seen += data
                        target.sendall(data)


@pytest.fixture
def man_in_the_middle(
    token: tuple[str, str], authority: Identity, tmp_path: Path
) -> Iterator[tuple[ManInTheMiddle, str]]:
    own = make_signed(authority, tmp_path, "middle", hosts="IP:127.0.0.1")
    with serving("tls://127.0.0.1:0", *token) as url:
        man = ManInTheMiddle(url, own)
        yield man, url
        man.close()


# Promise 3a.
def test_a_man_in_the_middle_fails_even_with_a_certificate_that_the_client_trusts(
    man_in_the_middle: tuple[ManInTheMiddle, str], authority: Identity
) -> None:
    """The proofs of the token are made for one TLS connection; he has two."""
    man, url = man_in_the_middle
    message = error_of(f"tls://127.0.0.1:{man.port}?ca={authority.cert}")
    assert "does not know this token" in message
    assert man.seen.startswith(b"TREMOTE\n")  # he was there
    assert "not the pinned one" in error_of(f"tls://127.0.0.1:{man.port}?{url.partition('?')[2]}")


# Promise 3a.
def test_no_secret_is_in_the_log_or_the_address(
    token: tuple[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with serving("tls://127.0.0.1:0", *token) as url:
        with torch_remote.connect(url) as machine:
            text = repr(machine) + str(machine.status())
        text += error_of(f"{url.partition('=')[0]}={'A' * 43}") + url
    text += "".join(capfd.readouterr())
    assert (tmp_path / "token").read_text().strip() not in text
    assert "PRIVATE KEY" not in text
    assert os.environ["XDG_STATE_HOME"] not in text
