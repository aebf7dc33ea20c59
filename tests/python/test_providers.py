"""Providers: what a URL means, who is asked to launch it, and where settings come from."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import DEADLINE, assert_runs, run_python, serving

import torch_remote
from torch_remote import (
    GPUType,
    _config,
    _kept,
    _running,
    choose_gpu,
    create_device,
    providers,
)
from torch_remote.providers import ssh

pytestmark = pytest.mark.slow


class Counting:
    """A provider that gives the URL of a server that runs already."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.events: list[str] = []

    def launch(self, spec: providers.Spec) -> providers.Endpoint:
        self.events.append(f"launch {spec.host} {spec.gpu and spec.gpu.value} {dict(spec.options)}")
        more = [providers.Endpoint(self.url)] * (int(spec.options.get("servers", 1)) - 1)
        return providers.Endpoint(self.url, handle="7", ends="at midnight", also=tuple(more))

    def status(self, endpoint: providers.Endpoint) -> dict[str, str]:
        return {"provider": "counting", "handle": endpoint.handle}

    def logs(self, endpoint: providers.Endpoint) -> str:
        return "hello"

    def stop(self, endpoint: providers.Endpoint) -> None:
        self.events.append(f"stop {endpoint.handle}")

    def machines(self) -> list[providers.Endpoint]:
        return []


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[Counting]:
    with serving(f"unix://{tmp_path}/s") as url:
        made = Counting(url)
        providers.register_provider("counting", made)
        yield made
        providers._registered.pop("counting")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration file, in a folder of its own. It does not exist yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("TORCH_REMOTE", raising=False)
    (tmp_path / "torch-remote").mkdir()
    return tmp_path / "torch-remote" / "config.toml"


def test_a_provider_of_the_older_kind_has_a_list() -> None:
    there = providers.Endpoint("older://box", handle="box")
    older: Any = SimpleNamespace(list=lambda: [there])
    providers.register_provider("older", older)
    try:
        assert providers.machines_of("older") == [there]
        found = _kept.find("older://box")
        assert found is not None and found.endpoint is there
    finally:
        providers._registered.pop("older")


def test_connect_launches_and_the_end_of_the_block_stops(provider: Counting) -> None:
    with torch_remote.connect("counting://box?size=2") as machine:
        assert provider.events == ["launch box None {'size': '2'}"]
        assert torch.ones(2, device=machine.devices[0]).sum().item() == 2
        status = machine.status()
        assert (status["provider"], status["handle"], status["ends"]) == (
            "counting",
            "7",
            "at midnight",
        )
        assert machine.logs() == "hello"
    assert provider.events[1:] == ["stop 7"]
    machine.stop()
    assert provider.events[1:] == ["stop 7"]


def test_a_machine_of_several_servers_shows_the_devices_of_all(provider: Counting) -> None:
    with torch_remote.connect("counting://box?servers=3") as machine:
        names = [str(device) for device in machine.devices]
        assert len(names) == 3
        assert f"devices=[{', '.join(names)}], state='open')" in repr(machine)
        html = machine._repr_html_()
        assert all(f"<td>{name}</td>" in html for name in names)
        assert html.count(f" on {machine.status()['host']}, open<") == 1


def test_a_device_of_a_provider_launches_at_first_use(provider: Counting) -> None:
    device = create_device("counting", "T4", host="box", size=2)
    assert provider.events == []
    assert torch.ones(2, device=device).sum().item() == 2
    assert provider.events == ["launch box T4 {'size': '2'}"]
    torch_remote.machines()[-1].stop()
    assert provider.events[1:] == ["stop 7"]


def test_what_was_launched_and_cannot_be_reached_is_stopped(
    provider: Counting, tmp_path: Path
) -> None:
    def explain(endpoint: providers.Endpoint, error: str) -> str:
        raise TimeoutError("the provider does not answer either")

    provider.explain = explain  # type: ignore[attr-defined]
    provider.url = f"unix://{tmp_path}/nobody"
    for connect in (
        lambda: torch_remote.connect("counting://box"),
        lambda: torch.ones(1, device=create_device("counting", host="box")),
    ):
        provider.events.clear()
        with pytest.raises(torch_remote.ConnectionError, match="nobody"):
            connect()
        assert provider.events == ["launch box None {}", "stop 7"]


def test_a_machine_that_is_running_at_exit_is_stopped(tmp_path: Path) -> None:
    with serving(f"unix://{tmp_path}/s") as url:
        said = assert_runs(
            f"""
            import torch, torch_remote
            from test_providers import Counting
            made = Counting({url!r})
            made.stop = lambda endpoint: print("stopped", endpoint.handle)
            torch_remote.providers.register_provider("counting", made)
            print(torch_remote.connect("counting://box").status()["state"])
            """,
            PYTHONPATH=str(Path(__file__).parent),
        )
    assert said.splitlines() == ["open", "stopped 7"]


def test_several_machines_at_once_have_devices_of_their_own(provider: Counting) -> None:
    with torch_remote.connect("counting://a") as a, torch_remote.connect("local") as b:
        x = torch.ones(2, device=a.devices[0]).to(b.devices[0])
        assert x.tolist() == [1, 1] and x.device in b.devices
        assert "end of this process" in b.status()["ends"]
        assert "standard error" in b.logs()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://host", "there is no provider 'ftp'; there are local, unix, tcp, tls, "),
        ("gpu-box", "is neither a URL nor a machine of"),
        ("ssh://", "names no host: write ssh://"),
        ("ssh://-oProxyCommand=x", "names no host"),
        ("ssh://u@-oProxyCommand=x", "names no host"),
        ("ssh://-l@host", "names no host"),
        ("ssh://a;id", "names no host"),
        ("ssh://$(id)@host", "names no host"),
        ("ssh://[::1", "names no host"),
        ("ssh://[::1;id]", "names no host"),
        ("ssh://box?comand=x", "no option 'comand'; there are command, "),
        ("modal://A1000", "Invalid GPU type 'A1000'"),
        ("modal://auto", "must say how much memory"),
    ],
)
def test_a_bad_url_is_one_sentence_that_says_what_to_do(url: str, words: str, config: Path) -> None:
    with pytest.raises(ValueError) as raised:
        torch_remote.connect(url)
    assert words in str(raised.value) and url.partition("://")[2] in str(raised.value)


def test_a_url_that_is_no_text_is_a_type_error() -> None:
    with pytest.raises(TypeError, match=r"a URL is a str, such as local, .*, not int"):
        torch_remote.connect(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ssh://box", ["--", "box"]),
        ("ssh://me@box.lab_1:2222/", ["-p", "2222", "--", "me@box.lab_1"]),
        ("ssh://[::1]", ["--", "::1"]),
        ("ssh://me@[fe80::1%eth0]:22", ["-p", "22", "--", "me@fe80::1%eth0"]),
    ],
)
def test_an_ssh_url_becomes_the_words_of_ssh(url: str, words: list[str]) -> None:
    command = ssh._ssh_command(providers.parse_url(url))
    assert command[-len(words) :] == words
    assert "ConnectTimeout=8" in command


@pytest.mark.parametrize("scheme", ["modal", "runpod", "sky"])
def test_urls_of_rented_machines_choose_the_gpu(scheme: str) -> None:
    for gpu in GPUType:
        spec = providers.parse_url(f"{scheme}://{gpu.value.lower()}?num_gpus=2")
        assert (spec.gpu, spec.host, spec.options) == (gpu, "", {"num_gpus": "2"})
    cheapest = providers.parse_url(f"{scheme}://auto?memory=30GiB")
    assert (cheapest.gpu, cheapest.host) == (choose_gpu("30GiB").gpu, "")
    assert providers.parse_url("ssh://h100").gpu is None


LOUD = """
import sys
sys.stderr.write("begins\\n" + "x" * (2 << 20) + "\\nends\\n")
print(sys.stdin.read())
sys.exit(3)
"""


# Promise 13a.
def test_what_a_launched_command_prints_does_not_fill_the_disk(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch(mode=0o600)
    for run in range(4):  # as a connection that is resumed runs its command again
        done = subprocess.run(
            _running.logged(log, [sys.executable, "-c", LOUD]),
            input=f"run {run}", capture_output=True, text=True, check=False, timeout=DEADLINE,
        )  # fmt: skip
        assert (done.returncode, done.stdout, done.stderr) == (3, f"run {run}\n", "")
        _running.wait_for_log(log, DEADLINE)
        assert log.stat().st_size <= 3 * _running.KEPT_BYTES
        assert log.read_text().count("begins") == 1 and log.read_text().endswith("x\nends\n")
        assert len(_running.read_end(log)) == _running.KEPT_BYTES
    assert [each.name for each in tmp_path.iterdir()] == ["log"]
    assert log.stat().st_mode & 0o777 == 0o600


def test_the_words_of_a_command_are_in_the_log_when_it_has_ended(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("earlier\n\n")
    subprocess.run(_running.logged(log, ["sh", "-c", "echo no such host >&2"]), check=True)
    _running.wait_for_log(log, DEADLINE)
    assert _running.read_end(log) == "earlier\n\nno such host\n"
    assert _running.read_end(tmp_path / "none") == ""


def test_a_command_runs_also_where_its_log_is_gone(tmp_path: Path) -> None:
    for log in (tmp_path / "removed", tmp_path / "no folder" / "log"):
        command = _running.logged(log, ["sh", "-c", "echo works; echo words >&2"])
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert (done.stdout, done.stderr) == ("works\n", "")
        if log.parent.exists():
            _running.wait_for_log(log, DEADLINE)
            assert log.read_text() == "words\n" and log.stat().st_mode & 0o777 == 0o600


def test_the_argument_goes_before_the_environment_and_that_before_the_file(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _config.default_url() == "local"
    config.write_text('url = "tcp://file:1"\n')
    assert _config.default_url() == "tcp://file:1"
    monkeypatch.setenv("TORCH_REMOTE", "tcp://environment:1")
    assert _config.default_url() == "tcp://environment:1"
    with torch_remote.connect("local") as machine:
        assert machine.status()["url"] == "local"


def test_the_file_names_the_default_machine_and_its_token(config: Path, tmp_path: Path) -> None:
    code = """
        import torch, torch_remote
        print(torch.remote.is_available(), torch.remote.device_count())
        print(torch.ones(2, device="remote").sum().item())
        print(torch_remote.machines()[0].status()["url"], torch_remote.connect().devices[0])
        print(torch_remote.connect("box").devices[0])
    """
    token = tmp_path / "token"
    with serving(f"unix://{tmp_path}/s", "--token-file", str(token)) as url:
        config.write_text(
            f'url = "{url}"\ntoken_file = "{token}"\n'
            f'[machines.box]\nurl = "{url}"\ntoken_file = "{token}"\n'
        )
        said = assert_runs(code)
        assert said.splitlines() == ["True 1", "2.0", f"{url} remote:1", "remote:2"]
        config.write_text(f'[machines.box]\nurl = "{url}"\ntoken_file = "{token}"\n')
        assert assert_runs(code, TORCH_REMOTE="box").splitlines()[1] == "2.0"


@pytest.mark.parametrize(
    ("text", "token_file"),
    [
        ('url = "box"\ntoken_file = "top"\n[machines.box]\nurl = "tcp://a:1"', "top"),
        ('url = "box"\ntoken_file = "top"\n[machines.box]\nurl = "a://"\ntoken_file = "b"', "b"),
        ('url = "local"\ntoken_file = "top"\n[machines.box]\nurl = "tcp://a:1"', None),
    ],
)
def test_a_token_at_the_top_is_for_the_default_machine(
    text: str, token_file: str | None, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text(text + "\n")
    assert _config.target_of("box").token_file == token_file
    monkeypatch.setenv("TORCH_REMOTE", "box")
    assert _config.target_of(_config.default_url()).token_file == token_file


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("machines = 3", "machines is a table: write [machines.NAME]"),
        ("url = 3", "url must be a text in quotes, not 3"),
        ('[machines.box]\nurl = ["a"]', "url of the machine 'box' must be a text in quotes"),
        ('[machines.local]\nurl = "tcp://a:1"', "cannot have the name 'local'"),
        (
            '[machines.box]\nurl = "tls://a:1"\ntokn_file = "b"',
            "has an unknown key 'tokn_file'; with tls there are token_file, url",
        ),
    ],
)
def test_a_wrong_value_is_one_sentence_with_the_path(text: str, words: str, config: Path) -> None:
    config.write_text(text + "\n")
    with pytest.raises(ValueError) as raised:
        _config.default_url()
    assert f"{config}" in str(raised.value) and words in str(raised.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("url = ", "is no TOML: "),
        ('uri = "local"', "unknown key 'uri'; there are machines, token_file, url"),
        ("[machines.box]", "the machine 'box' needs a url"),
    ],
)
def test_a_bad_file_is_one_sentence_with_its_path(text: str, words: str, config: Path) -> None:
    config.write_text(text + "\n")
    with pytest.raises(ValueError) as raised:
        _config.default_url()
    assert f"{config}" in str(raised.value) and words in str(raised.value)
    done = run_python('import torch, torch_remote; torch.ones(1, device="remote")')
    assert done.returncode == 1 and words in done.stderr.splitlines()[-1]


def test_a_package_adds_a_provider_by_an_entry_point(tmp_path: Path) -> None:
    (tmp_path / "other_cloud.py").write_text(
        "def launch(spec): raise RuntimeError('other_cloud launches ' + spec.host)\n"
    )
    info = tmp_path / "other_cloud-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other-cloud\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[torch_remote.providers]\nother = other_cloud\n")
    done = run_python(
        "import torch_remote; torch_remote.connect('other://box')", PYTHONPATH=str(tmp_path)
    )
    assert done.stderr.splitlines()[-1] == "RuntimeError: other_cloud launches box"


def test_autoload_needs_no_import(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import torch; print(torch.ones(2, device='remote').sum().item())"
    assert assert_runs(code, TORCH_REMOTE_AUTOLOAD="1") == "2.0"
    monkeypatch.delenv("TORCH_REMOTE_AUTOLOAD", raising=False)
    said = assert_runs(
        """
        import torch
        print(hasattr(torch, "remote"))
        try:
            torch.serialization.default_restore_location(None, "remote:0")
        except RuntimeError as error:
            print(error)
        """
    ).splitlines()
    assert said[0] == "False"
    assert "remote:0: import torch_remote before torch.load()" in said[1]
