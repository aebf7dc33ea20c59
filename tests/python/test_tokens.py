"""A token that is given to `connect()` is for that machine only and is never printed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from helpers import serving

import torch_remote
from torch_remote import _launch


@pytest.fixture(autouse=True)
def no_token_around(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("TORCH_REMOTE_TOKEN", "TORCH_REMOTE_TOKEN_FILE"):
        monkeypatch.delenv(variable, raising=False)


# Promise 3.
def test_each_machine_has_a_token_of_its_own(tmp_path: Path) -> None:
    files = [tmp_path / "token-a", tmp_path / "token-b"]
    with (
        serving(f"unix://{tmp_path}/a", "--token-file", str(files[0])) as first,
        serving("tcp://127.0.0.1:0", "--token-file", str(files[1])) as second,
    ):
        assert files[0].read_text() != files[1].read_text()
        with (
            torch_remote.connect(first, token_file=files[0]) as one,
            torch_remote.connect(second, token=files[1].read_text()) as other,
        ):
            for machine in (one, other):
                assert torch.ones(2, device=machine.devices[0]).sum().item() == 2
        with pytest.raises(torch_remote.ConnectionError, match="does not know this token"):
            torch_remote.connect(second, token_file=str(files[0]))
        with pytest.raises(torch_remote.ConnectionError, match="token_file="):
            torch_remote.connect(second)


def test_the_argument_goes_before_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TORCH_REMOTE_TOKEN", "another-token-another-token")
    monkeypatch.setenv("TORCH_REMOTE_TOKEN_FILE", f"{tmp_path}/is-not-there")

    def answers(**token: str) -> bool:
        with torch_remote.connect(url, **token) as machine:
            return bool(torch.ones(2, device=machine.devices[0]).sum().item() == 2)

    with serving(f"unix://{tmp_path}/a", "--token-file", f"{tmp_path}/token") as url:
        with pytest.raises(torch_remote.ConnectionError, match="is-not-there"):
            answers()
        assert answers(token_file="~/token")
        assert answers(token=(tmp_path / "token").read_text())
    with serving(f"unix://{tmp_path}/b") as url:
        assert answers(token="")


def test_what_cannot_be_is_refused_without_the_token(tmp_path: Path) -> None:
    secret = "a-secret-a-secret-a-secret"
    (tmp_path / "empty").write_text(" \n")
    url = f"unix://{tmp_path}/s"
    wrong = [
        (ValueError, url, {"token": secret, "token_file": "x"}, "not both"),
        (ValueError, "local", {"token": secret}, "takes no token"),
        (ValueError, url, {"token_file": tmp_path / "empty"}, "there is no token in"),
        (torch_remote.ConnectionError, url, {"token_file": tmp_path / "none"}, "none"),
        (TypeError, url, {"token": secret.encode()}, "a str, not bytes"),
    ]
    for error, where, options, words in wrong:
        with pytest.raises(error, match=words) as caught:
            torch_remote.connect(where, **options)
        assert secret not in str(caught.value)
    with pytest.raises(TypeError):
        torch_remote.connect(url, secret)  # type: ignore[misc]


# Promise 3.
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_token_file_of_another_user_is_warned_of(tmp_path: Path) -> None:
    token, log = tmp_path / "token", tmp_path / "log"
    token.write_text("a-token-a-token-a-token\n")
    token.chmod(0o600)
    os.chown(token, 65534, 65534)
    with serving(f"unix://{tmp_path}/s", "--token-file", str(token), log=log):
        pass
    assert "the token file belongs to another user" in log.read_text()


def test_a_token_file_that_others_can_read_is_not_used_beyond_loopback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    token = tmp_path / "token"
    token.write_text("0" * 64)
    token.chmod(0o644)
    beyond = ("tls://192.0.2.1:1", "tcp://gpu-box:1", "tls://[2001:db8::1]:1")
    here = ("tls://127.0.0.1:1", "tcp://localhost:1", "tcp://[::1]:1", "unix:///path")
    for url in beyond:
        with pytest.raises(torch_remote.ConnectionError, match=f"run `chmod 600 {token}`"):
            torch_remote.connect(url, token_file=token)
    for url in here:
        with pytest.warns(UserWarning, match=f"run `chmod 600 {token}`"):
            _launch.read_token(token, url)
    monkeypatch.setenv("TORCH_REMOTE_TOKEN_FILE", str(token))
    with pytest.raises(torch_remote.ConnectionError, match=f"run `chmod 600 {token}`"):
        torch_remote.connect(beyond[0]).devices  # noqa: B018
    with pytest.raises(torch_remote.ConnectionError, match="What to do: start a server there"):
        torch_remote.connect("tcp://127.0.0.1:1").devices  # noqa: B018
    assert "other users can read the token file" in capfd.readouterr().err


# Promise 3.
def test_a_token_is_in_no_text(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with serving(f"unix://{tmp_path}/s", "--token-file", f"{tmp_path}/token") as url:
        token = (tmp_path / "token").read_text().strip()
        with torch_remote.connect(url, token=token) as machine:
            texts = [repr(machine), str(machine), str(machine.status()), str(vars(machine))]
    with pytest.raises(torch_remote.ConnectionError) as caught:
        torch_remote.connect(url, token=token)
    texts += [str(caught.value), *capfd.readouterr()]
    assert not any(token in text for text in texts)
