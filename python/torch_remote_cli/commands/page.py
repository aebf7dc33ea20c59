"""Shows a server's figures in a browser: sessions, devices, memory, operators, waits, log.

This is a process of its own that reads the server's metrics socket. It listens on loopback only,
changes nothing, loads nothing from the internet, and needs a token, which it makes at the first
start. /metrics gives the figures to Prometheus.
"""

from __future__ import annotations

import argparse
import ipaddress
import re
import signal
import sys
from pathlib import Path

from .. import figures, page_token
from ..collector import Collector
from ..errors import OK, CommandError
from ..output import printable
from ..page_server import PageServer

EPILOG = """\
examples:
  torch-remote page
  torch-remote page --log /var/log/torch-remote.log         shows the end of that file too
  ssh -N -L 4712:127.0.0.1:4712 gpu-box                     for a page that runs there

At a terminal the printed URL has the token in it; open it once, and the browser keeps a cookie.
Elsewhere the URL has no token: it is in the token file.
The lines of programs that wait are known on the machine where `torch-remote run` runs them.

Prometheus: `authorization: {credentials_file: /path/page-token}` in its scrape configuration.

exit status: 0 ended by Ctrl-C or SIGTERM; 1 it cannot listen, or the token file cannot be used;
2 wrong usage; 3 no metrics socket is known
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--metrics",
        metavar="URL",
        help="unix:///path of `serve --metrics`, or TORCH_REMOTE_METRICS",
    )
    parser.add_argument(
        "--listen",
        metavar="ADDRESS",
        default="127.0.0.1:4712",
        help="host and port on loopback; port 0 takes a free one; default 127.0.0.1:4712",
    )
    parser.add_argument(
        "--host",
        metavar="NAME",
        action="append",
        default=[],
        help="a name by which browsers reach it, such as that of a proxy; may be given again",
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="made if it is missing, in a folder that exists; default: page-token in "
        "~/.local/state/torch-remote",
    )
    parser.add_argument("--log", metavar="FILE", help="a file with the server's log to show")
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing but the URL")


def run(options: argparse.Namespace) -> int:
    host, port = parse_address(options.listen)
    check_names(options.host)
    socket = figures.find_socket(options.metrics)
    path = (
        Path(options.token_file).expanduser() if options.token_file else page_token.default_path()
    )
    token = page_token.read_or_make(path)
    log = Path(options.log).expanduser() if options.log else None
    collector = Collector(socket, log)
    try:
        server = PageServer((host, port), token, collector, options.host)
    except OSError as error:
        raise CommandError(f"cannot listen on {options.listen}: {error.strerror}") from error
    collector.start()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        # In this block, since who reads the lines may press Ctrl-C.
        if not options.quiet:
            _tell_missing("socket", socket)
            _tell_missing("log file", log)
        _say_ready(server, host, token, path, options.quiet)
        server.serve_forever()
    except KeyboardInterrupt:
        return OK
    finally:
        server.server_close()
    return OK


def parse_address(text: str) -> tuple[str, int]:
    host, _, port = text.removeprefix("tcp://").removeprefix("http://").rpartition(":")
    host = {"localhost": "127.0.0.1"}.get(host, host.strip("[]"))
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
        number = int(port)
    except ValueError:
        raise CommandError(f"--listen {text}: write 127.0.0.1:PORT", 2) from None
    if not 0 <= number <= 65535:
        raise CommandError(f"--listen {text}: a port is a number from 0 to 65535", 2)
    if not is_loopback:
        raise CommandError(
            f"--listen {text} is refused: the page is not encrypted, so it is on loopback only; "
            "forward the port by ssh, or put a proxy with TLS before it (and give --host the "
            "proxy's name)",
            2,
        )
    return host, number


def check_names(names: list[str]) -> None:
    for name in names:
        if re.fullmatch(r"[\w.-]+|\[[0-9A-Fa-f:.]+\]", name) is None:
            raise CommandError(
                f"--host {name}: write a name without a port, as gpu-box.lan or [::1]", 2
            )


def _tell_missing(what: str, path: Path | None) -> None:
    """The server that makes it may start later."""
    if path is None:
        return
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        text = f"there is no {what} {path} yet; the page looks for it again"
        print(f"torch-remote page: {printable(text)}", file=sys.stderr, flush=True)
    except OSError:
        pass  # the page shows why it cannot be read


def _say_ready(server: PageServer, host: str, token: str, path: Path, quiet: bool) -> None:
    name = f"[{host}]" if ":" in host else host
    url = f"http://{name}:{server.server_address[1]}/"
    is_shown = sys.stdout.isatty()  # a token must not get into a log
    print(f"page on {url}{f'#token={token}' if is_shown else ''}", flush=True)
    if not is_shown and not quiet:
        print(f"the token is in {path}; open {url}#token=TOKEN once", flush=True)
