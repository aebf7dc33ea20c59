"""The page's HTTP server: static files for everybody, figures for who knows the token.

    GET  /  /page.css  /page.js  /icon.svg    the page itself, which has no figures in it
    POST /session      Authorization: Bearer TOKEN   sets a cookie, so that the browser keeps access
    GET  /api/figures  cookie or Bearer              JSON; ?history=minutes|day&after=NUMBER
    GET  /metrics      cookie or Bearer              the server's text, for Prometheus

Nothing here changes anything. The token is compared in constant time, is in no log, and reaches the
page in the fragment of its URL, which browsers do not send. Who shows neither token nor cookie gets
one answer for each connection; the head of a request has at most 4 KiB.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import json
import re
import socket
import sys
from collections.abc import Iterable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any
from urllib.parse import parse_qs, urlsplit

from .collector import Collector
from .errors import CommandError
from .page_connections import MOST, Connections

FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}
LOOPBACK_NAMES = {"localhost", "127.0.0.1", "[::1]"}
MOST_HEAD = 4096  # bytes of a request's line and headers


class HeadTooLong(Exception):
    pass


class HeadReader(io.BufferedReader):
    """Reads the lines of requests, of each at most MOST_HEAD bytes."""

    left = 0

    def readline(self, size: int | None = -1, /) -> bytes:
        most = self.left + 1
        line = super().readline(most if size is None or size < 0 else min(size, most))
        self.left -= len(line)
        if self.left < 0:
            raise HeadTooLong
        return line


class PageServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = MOST

    def __init__(
        self, address: tuple[str, int], token: str, collector: Collector, names: Iterable[str] = ()
    ) -> None:
        """`names`: what else browsers may call this server, such as the name of a proxy."""
        own = address[0]
        if ":" in own:
            self.address_family = socket.AF_INET6
            own = f"[{own}]"
        self.names = {*LOOPBACK_NAMES, own.lower(), *(each.lower() for each in names)}
        super().__init__(address, Handler)
        self.collector = collector
        self.connections = Connections()
        self._token = token.encode()
        # Cookies are shared by all ports of a host, so the name has the port.
        self.cookie_name = f"torch_remote_page_{self.server_address[1]}"
        # The cookie is not the token: who steals the one does not have the other.
        self.cookie = hmac.new(self._token, b"torch-remote page", hashlib.sha256).hexdigest()

    def is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(), self._token)

    def is_cookie(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(), self.cookie.encode())

    def process_request(self, request: Any, client_address: Any) -> None:
        if self.connections.add(request):
            super().process_request(request, client_address)
        else:
            super().shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        self.connections.remove(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # a peer that closes is no error
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    server: PageServer
    server_version = "torch-remote"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = 20

    def setup(self) -> None:
        super().setup()
        raw: socket.SocketIO = self.connection.makefile("rb", buffering=0)
        self.rfile = HeadReader(raw)

    def handle_one_request(self) -> None:
        assert isinstance(self.rfile, HeadReader)
        self.rfile.left = MOST_HEAD
        try:
            super().handle_one_request()
        except HeadTooLong:
            self.requestline = self.request_version = self.command = ""
            self.close_connection = True
            self._refuse(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"the head is over {MOST_HEAD} bytes"
            )

    def parse_request(self) -> bool:
        is_read = super().parse_request()
        if is_read and (self._has_bearer() or self._has_cookie()):
            self.server.connections.note_token(self.connection)
        else:
            self.close_connection = True
        return is_read and self._has_path()

    def _has_path(self) -> bool:
        """Refuses what is no URL: an exception would print a traceback for each request."""
        try:
            urlsplit(self.path)
        except ValueError:
            self.close_connection = True
            self._refuse(HTTPStatus.BAD_REQUEST, "this is no address of a page")
            return False
        return True

    def do_GET(self) -> None:
        if self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # a body is not read, and is no second request
        url = urlsplit(self.path)
        if not self._is_for_us():
            return
        if url.path in FILES:
            name, kind = FILES[url.path]
            self._send(HTTPStatus.OK, _file(name), kind)
        elif url.path == "/api/figures":
            self._send_figures(parse_qs(url.query))
        elif url.path == "/metrics":
            self._send_metrics()
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such page")

    do_HEAD = do_GET

    def do_POST(self) -> None:
        self.close_connection = True  # a body is not read
        if not self._is_for_us():
            return
        if urlsplit(self.path).path != "/session":
            return self._refuse(HTTPStatus.NOT_FOUND, "there is no such page")
        if not self._has_bearer():
            return self._refuse(HTTPStatus.UNAUTHORIZED, "the token is wrong")
        cookie = f"{self.server.cookie_name}={self.server.cookie}"
        flags = "HttpOnly; SameSite=Strict; Path=/; Max-Age=31536000"
        self._send(HTTPStatus.NO_CONTENT, b"", "text/plain", {"Set-Cookie": f"{cookie}; {flags}"})

    def _is_for_us(self) -> bool:
        """Refuses names that another site has pointed at this address (DNS rebinding)."""
        host = re.sub(r":\d+$", "", self.headers.get("Host") or "")
        if host.lower() in self.server.names:
            return True
        self._refuse(
            HTTPStatus.MISDIRECTED_REQUEST,
            "this server is for localhost only; start it with --host NAME for another name",
        )
        return False

    def _has_bearer(self) -> bool:
        scheme, _, token = (self.headers.get("Authorization") or "").partition(" ")
        return scheme.lower() == "bearer" and self.server.is_token(token.strip())

    def _has_cookie(self) -> bool:
        for cookie in (self.headers.get("Cookie") or "").split(";"):
            name, _, value = cookie.strip().partition("=")
            if name == self.server.cookie_name and self.server.is_cookie(value):
                return True
        return False

    def _may_read(self) -> bool:
        if self._has_bearer() or self._has_cookie():
            return True
        self._refuse(HTTPStatus.UNAUTHORIZED, "a token is needed", {"WWW-Authenticate": "Bearer"})
        return False

    def _send_figures(self, query: dict[str, list[str]]) -> None:
        if not self._may_read():
            return
        history = query.get("history", ["minutes"])[0]
        after = query.get("after", ["0"])[0]
        if history not in ("minutes", "day") or not after.isdecimal() or len(after) > 12:
            return self._refuse(HTTPStatus.BAD_REQUEST, "history is minutes or day, after a number")
        told = self.server.collector.told(history, int(after))
        self._send(HTTPStatus.OK, json.dumps(told).encode(), "application/json")

    def _send_metrics(self) -> None:
        if not self._may_read():
            return
        try:
            text = self.server.collector.metrics()
        except CommandError as error:
            return self._refuse(HTTPStatus.BAD_GATEWAY, str(error))
        self._send(HTTPStatus.OK, text.encode(), "text/plain; version=0.0.4; charset=utf-8")

    def _refuse(self, status: HTTPStatus, reason: str, extra: dict[str, str] | None = None) -> None:
        self._send(status, f"{reason}\n".encode(), "text/plain; charset=utf-8", extra)

    def _send(
        self, status: HTTPStatus, body: bytes, kind: str, extra: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {**HEADERS, **(extra or {})}.items():
            self.send_header(name, value)
        if status != HTTPStatus.NO_CONTENT:
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Requests are not logged."""


def _file(name: str) -> bytes:
    return resources.files(__package__).joinpath("web").joinpath(name).read_bytes()
