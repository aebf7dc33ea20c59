"""`torch-remote page`: who may read it, what it says, and that a real browser shows it."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import browser
import pytest
import torch
from helpers import DEADLINE, serving, wait_until

import torch_remote
from torch_remote_cli import page_token
from torch_remote_cli.collector import Collector, History, MinuteMean
from torch_remote_cli.page_server import PageServer

pytestmark = pytest.mark.slow

STATIC = ("/", "/page.css", "/page.js", "/icon.svg")
WEB = Path(sys.modules["torch_remote_cli.collector"].__file__ or "").parent / "web"


class Page:
    """A running page. `get` returns status, headers and body."""

    def __init__(self, url: str, token_file: Path) -> None:
        self.url = url
        self.token = token_file.read_text().strip()
        self.port = int(url.rstrip("/").rpartition(":")[2])

    def ask(
        self, path: str, method: str = "GET", **headers: str
    ) -> tuple[int, http.client.HTTPMessage, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read().decode()
        finally:
            connection.close()

    def figures(self, query: str = "") -> dict[str, Any]:
        status, _, body = self.ask(f"/api/figures{query}", Authorization=f"Bearer {self.token}")
        assert status == 200, body
        return dict(json.loads(body))


@contextmanager
def showing(folder: Path, metrics: str, *options: str, told: str = "") -> Iterator[Page]:
    """`told` is what it prints to stderr."""
    token_file = folder / "state" / "page-token"
    token_file.parent.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "torch_remote_cli", "page", "--listen", "127.0.0.1:0"]
    command += ["--metrics", metrics, "--token-file", str(token_file), *options]
    page = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "XDG_RUNTIME_DIR": str(folder)},
    )  # fmt: skip
    try:
        assert page.stdout is not None
        line = page.stdout.readline()
        assert line.startswith("page on http://127.0.0.1:"), page.communicate(timeout=DEADLINE)
        yield Page(line.removeprefix("page on ").strip(), token_file)
    finally:
        page.send_signal(signal.SIGTERM)
        rest, errors = page.communicate(timeout=DEADLINE)
        assert (page.returncode, errors) == (0, told)
        token = token_file.read_text().strip()
        assert token not in line + rest, "a token must not get into a log"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Page, Path]]:
    """A server's URL, a page of it, and the folder of both."""
    folder = tmp_path_factory.mktemp("page")
    log = folder / "log"
    log.write_text("first line\n<img src=x onerror=alert(1)>\n")
    with (
        serving(f"unix://{folder}/s", "--metrics", f"unix://{folder}/m") as url,
        showing(folder, f"unix://{folder}/m", "--log", str(log)) as page,
    ):
        yield url, page, folder


# --- who may read


# Promise 13.
@pytest.mark.parametrize("path", ["/api/figures", "/metrics"])
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer é"},
        {"Authorization": "Basic dG9rZW4="},
        {"Cookie": "torch_remote_page=1; =;;"},
    ],
)
def test_figures_need_the_token(
    path: str, headers: dict[str, str], place: tuple[str, Page, Path]
) -> None:
    status, _, body = place[1].ask(path, **headers)
    assert status == 401
    assert "torch_remote_" not in body


# Promise 13.
def test_a_cookie_is_given_for_the_token_and_is_not_the_token(
    place: tuple[str, Page, Path],
) -> None:
    page = place[1]
    assert page.ask("/session", "POST", Authorization="Bearer wrong")[0] == 401
    status, headers, _ = page.ask("/session", "POST", Authorization=f"Bearer {page.token}")
    assert status == 204
    cookie = headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    assert page.token not in cookie
    name_and_value = cookie.partition(";")[0]
    assert page.ask("/api/figures", Cookie=name_and_value)[0] == 200
    assert page.ask("/api/figures", Cookie=f"{name_and_value[:-1]}x")[0] == 401


def test_the_token_file_is_made_for_its_owner_and_one_that_others_read_is_refused(
    place: tuple[str, Page, Path],
) -> None:
    made = place[2] / "state/page-token"
    assert stat.S_IMODE(made.stat().st_mode) == 0o600
    assert len(place[1].token) == 64
    open_to_all = place[2] / "open"
    open_to_all.write_text("0" * 64)
    open_to_all.chmod(0o644)
    command = [sys.executable, "-m", "torch_remote_cli", "page", "--listen", "127.0.0.1:0"]
    command += ["--metrics", f"unix://{place[2]}/m", "--token-file", str(open_to_all)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 1 and f"chmod 600 {open_to_all}" in done.stderr


def test_a_token_file_is_made_in_a_folder_that_exists_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "missing/x"
    command = [sys.executable, "-m", "torch_remote_cli", "page", "--listen", "127.0.0.1:0"]
    command += ["--metrics", f"unix://{tmp_path}/m", "--token-file", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"torch-remote page: cannot make the token file {path}: there is no folder {path.parent}\n"
    )
    assert not path.parent.exists()
    monkeypatch.setenv("XDG_STATE_HOME", f"{tmp_path}/state")
    assert len(page_token.read_or_make(page_token.default_path())) == 64


# Promise 13.
@pytest.mark.parametrize(
    "address", ["0.0.0.0:0", "192.0.2.1:80", "[::]:0", "nonsense", "127.0.0.1:"]
)
def test_it_listens_on_loopback_only(address: str, place: tuple[str, Page, Path]) -> None:
    command = [sys.executable, "-m", "torch_remote_cli", "page", "--listen", address]
    command += ["--metrics", f"unix://{place[2]}/m"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 2 and "--listen" in done.stderr


# Promise 13.
def test_a_name_that_another_site_points_here_is_refused(place: tuple[str, Page, Path]) -> None:
    page = place[1]
    token = f"Bearer {page.token}"
    assert page.ask("/api/figures", Host="evil.example", Authorization=token)[0] == 421
    for host in ("localhost", f"localhost:{page.port}", f"[::1]:{page.port}", "127.0.0.1"):
        assert page.ask("/api/figures", Host=host, Authorization=token)[0] == 200


def test_the_address_it_listens_on_and_names_that_are_given_are_its_own() -> None:
    collector: Any = None  # static files need none
    with PageServer(("127.0.0.2", 0), "token", collector, ["Page.Example"]) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = server.server_address[:2]
        for host, status in (("127.0.0.2:1", 200), ("page.example", 200), ("evil.example", 421)):
            connection = http.client.HTTPConnection(*address, timeout=DEADLINE)
            connection.request("GET", "/", headers={"Host": host})
            assert connection.getresponse().status == status
            connection.close()
        server.shutdown()


def test_a_body_of_a_get_is_no_second_request(place: tuple[str, Page, Path]) -> None:
    second = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    first = f"GET /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(second)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", place[1].port), DEADLINE) as connection:
        connection.sendall(first.encode() + second)
        with connection.makefile("rb") as answers:
            said = answers.read()
    assert said.startswith(b"HTTP/1.1 404") and said.count(b"HTTP/1.1") == 1


# Promise 13.
def test_nothing_can_be_changed_and_other_paths_do_not_exist(
    place: tuple[str, Page, Path],
) -> None:
    page = place[1]
    token = f"Bearer {page.token}"
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
        assert page.ask("/api/figures", method, Authorization=token)[0] == 501
    assert page.ask("/api/figures", "POST", Authorization=token)[0] == 404
    for path in ("/web/page.js", "/../page_token.py", "/%2e%2e/errors.py", "//etc/passwd"):
        assert page.ask(path, Authorization=token)[0] == 404
    for query in ("?history=x", "?after=-1", "?after=1e9", "?after=" + "9" * 40):
        assert page.ask(f"/api/figures{query}", Authorization=token)[0] == 400


# Promise 13.
@pytest.mark.parametrize("path", [*STATIC, "/metrics", "/nothing"])
def test_every_answer_has_a_strict_policy(path: str, place: tuple[str, Page, Path]) -> None:
    headers = place[1].ask(path)[1]
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Frame-Options"] == "DENY"


# Promise 13.
def test_the_page_names_no_other_site_and_makes_no_html_of_text() -> None:
    for path in WEB.iterdir():
        text = path.read_text()
        links = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[\w./]*", text))
        assert links <= {"http://www.w3.org/2000/svg", "//www.w3.org/2000/svg"}, path
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", text)


# --- what it says


def test_it_tells_sessions_samples_operators_and_the_log(place: tuple[str, Page, Path]) -> None:
    url, page, _ = place
    with torch_remote.connect(url) as machine:
        x = torch.ones(1 << 20, device=machine.devices[0])
        (x + 1).sum().item()

        def has_it() -> bool:
            server = page.figures()["server"]
            return any(one["memory"] >= 4 << 20 for one in server["sessions"])

        assert wait_until(has_it)
        told = page.figures()
    assert told["error"] == ""
    assert told["columns"][1] == "memory" and told["samples"][-1][1] >= 4 << 20
    assert {one["name"] for one in told["server"]["operators"]} >= {"aten::add.Tensor", "aten::sum"}
    assert told["log"][0] == "first line"
    assert page.figures(f"?after={told['last']}")["last"] >= told["last"]
    assert len(page.figures(f"?after={told['last']}")["samples"]) < len(told["samples"]) + 5
    assert page.figures("?history=day")["columns"] == told["columns"]


def test_it_tells_the_lines_that_wait_in_programs_on_this_machine(
    place: tuple[str, Page, Path], tmp_path: Path
) -> None:
    url, page, folder = place
    script = tmp_path / "waits.py"
    script.write_text("import torch\nx = torch.ones(3).cuda()\nwhile True:\n    x.sum().item()\n")
    command = [sys.executable, "-m", "torch_remote_cli", "run", "--on", url, str(script)]
    program = subprocess.Popen(command, env={**os.environ, "XDG_RUNTIME_DIR": str(folder)})
    told = folder / f"torch-remote/clients/{program.pid}.json"
    try:

        def lines() -> list[str]:
            return [wait["line"] for one in page.figures()["clients"] for wait in one["waits"]]

        assert wait_until(lambda: any(line.endswith("waits.py:4") for line in lines()))
        assert stat.S_IMODE(told.stat().st_mode) == 0o600
    finally:
        program.kill()
        program.wait(DEADLINE)
    assert wait_until(lambda: page.figures()["clients"] == []), "a killed program is left out"
    assert not told.exists()


def test_prometheus_reads_the_servers_own_text(place: tuple[str, Page, Path]) -> None:
    page = place[1]
    status, headers, body = page.ask("/metrics", Authorization=f"Bearer {page.token}")
    assert status == 200 and headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert re.search(r"^torch_remote_sessions \d+$", body, re.M)
    types = re.findall(r"^# TYPE (\w+) \w+$", body, re.M)
    assert len(types) == len(set(types)), "Prometheus refuses a metric that is typed twice"
    for line in body.splitlines():
        assert re.fullmatch(r'# TYPE \w+ (counter|gauge)|\w+(\{(\w+="[^"]*",?)+\})? [\d.]+', line)


def test_it_goes_on_when_the_server_ends_and_comes_back(tmp_path: Path) -> None:
    metrics = f"unix://{tmp_path}/m"
    with serving(f"unix://{tmp_path}/s", "--metrics", metrics):
        page = showing(tmp_path, metrics)
        shown = page.__enter__()
        assert wait_until(lambda: bool(shown.figures()["samples"]))
    try:
        assert wait_until(lambda: "start a server" in shown.figures()["error"])
        status = shown.ask("/metrics", Authorization=f"Bearer {shown.token}")[0]
        assert status == 502
        with serving(f"unix://{tmp_path}/s", "--metrics", metrics):
            assert wait_until(lambda: shown.figures()["error"] == "")
    finally:
        page.__exit__(None, None, None)


@pytest.mark.parametrize("options", [[], ["--quiet"]])
def test_a_socket_and_a_log_that_are_not_there_yet_are_told(
    options: list[str], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    said = [
        f"torch-remote page: there is no {what} yet; the page looks for it again\n"
        for what in (f"socket {tmp_path}/m", f"log file {log}")
    ]
    told = "" if options else "".join(said)
    words = ["--log", str(log), *options]
    with showing(tmp_path, f"unix://{tmp_path}/m", *words, told=told) as page:
        log.write_text("the first line\n")
        assert page.figures()["log"] == ["the first line"]


def test_histories_keep_the_last_samples_and_the_mean_of_each_minute() -> None:
    history = History(3)
    for i in range(5):
        history.add((float(i), 0, 0, 0))
    assert history.after(3) == [(3.0, 0, 0, 0), (4.0, 0, 0, 0)]
    assert history.after(5) == []
    assert [sample[0] for sample in history.after(0)] == [2.0, 3.0, 4.0]
    assert [sample[0] for sample in history.after(99)] == [2.0, 3.0, 4.0], "of an earlier page"
    minute = MinuteMean()
    assert minute.add((60.0, 5, 1, 10.0)) is None
    assert minute.add((61.0, 9, 2, 20.0)) is None
    assert minute.add((120.0, 1, 1, 1.0)) == (60.0, 9, 2, 15.0)


def test_a_server_that_sends_rubbish_is_an_error_and_no_crash(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(f"{tmp_path}/m")
        door.listen()
        import threading

        def answer() -> None:
            client = door.accept()[0]
            with client:
                client.sendall(b'torch_remote_info{pid="x"} 1\n')

        threading.Thread(target=answer, daemon=True).start()
        collector = Collector(tmp_path / "m", None)
        collector.collect()
        assert collector.told("minutes", 0)["error"]


# --- in a browser


@pytest.mark.skipif(browser.find() is None, reason="there is no Chromium: apt-get install chromium")
def test_a_browser_shows_it(place: tuple[str, Page, Path], tmp_path: Path) -> None:
    url, page, folder = place
    script = tmp_path / "train.py"
    script.write_text(
        "import time, torch\nx = torch.ones(512, 512).cuda()\nkept = []\n"
        "while True:\n    kept = [*kept[-50:], x @ x]\n    kept[-1].sum().item()\n"
        "    time.sleep(0.02)\n"
    )
    command = [sys.executable, "-m", "torch_remote_cli", "run", "--on", url, str(script)]
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
    program = subprocess.Popen(command, env=environment)
    try:
        with browser.browsing(browser.find() or "") as tab:
            tab.resize(1400, 900)
            tab.open(page.url)  # no token: it asks for one
            tab.wait_for("document.querySelector('#login:not([hidden])')")
            tab.open(f"{page.url}#token={'0' * 64}")
            tab.wait_for("document.body.innerText.includes('This token is wrong')")
            tab.messages.clear()  # of the refusals
            tab.open(f"{page.url}#token={page.token}")
            tab.wait_for("document.querySelector('#sessions td.code')")
            assert tab.evaluate("location.href") == page.url, "the token left the address bar"
            tab.wait_for("document.querySelector('#memory-chart polyline')")
            tab.wait_for("document.querySelector('#operators').innerText.includes('mm')")
            tab.wait_for("document.querySelector('#waits').innerText.includes('train.py:6')")
            tab.wait_for("document.querySelector('#log').innerText.includes('onerror=alert(1)')")
            assert tab.evaluate("document.images.length") == 0
            for width in (400, 1400):
                tab.resize(width, 900, "dark")
                tab.wait_for(f"document.documentElement.clientWidth <= {width}")
                assert tab.evaluate("document.documentElement.scrollWidth") <= width
            dark = "getComputedStyle(document.body).backgroundColor"
            assert tab.evaluate(dark) == "rgb(19, 20, 22)"
            tab.evaluate("document.querySelector('[data-history=day]').click()")
            tab.wait_for("document.querySelector('[data-history=day][aria-pressed=true]')")
            tab.wait_for("document.querySelector('#memory-chart svg')")
            tab.evaluate("document.querySelector('[data-history=minutes]').click()")
            tab.wait_for("document.querySelector('#calls-chart polyline')")
            assert tab.messages == []
            assert tab.screenshot().startswith(b"\x89PNG")
    finally:
        program.terminate()
        program.wait(DEADLINE)
