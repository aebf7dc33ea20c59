"""Shows a server's sessions, memory and counters.

Without a URL it asks the server's metrics socket, which needs neither torch nor a token and must be
on this machine (or forwarded to it). With one it connects as a client does, and shows devices,
versions and the round trip.
"""

from __future__ import annotations

import argparse
from typing import Any

from .. import figures, machine
from ..errors import OK
from ..output import bytes_text, count_text, counted, duration_text, print_json, table

EPILOG = """\
examples:
  torch-remote serve --listen URL --metrics unix://$XDG_RUNTIME_DIR/torch-remote/metrics.sock
  torch-remote status
  torch-remote status --on tcp://127.0.0.1:4711 --token-file ~/.torch-remote-token --json
  ssh -N -L $XDG_RUNTIME_DIR/m.sock:/run/torch-remote/metrics.sock gpu-box   forwards one

exit status: 0; 1 the token file cannot be used; 2 wrong usage; 3 nobody answers; 4 the token is
refused
"""

HEADER = ("session", "client", "device", "age", "memory", "tensors", "calls", "reads", "errors")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--metrics",
        metavar="URL",
        help="unix:///path of `serve --metrics`, or TORCH_REMOTE_METRICS",
    )
    machine.add_arguments(parser, default="the metrics socket")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")


def run(options: argparse.Namespace) -> int:
    url = machine.named_url(options)
    if url is not None:
        told = _ask(url, options)
        print_json(told) if options.json else _show_machine(told)
        return OK
    now = figures.read(figures.find_socket(options.metrics))
    print_json(now.as_dict()) if options.json else print(describe(now))
    return OK


def describe(now: figures.Figures) -> str:
    lines = [
        f"server on {now.host}, pid {now.pid}, torch {now.torch}, "
        f"up {duration_text(max(0.0, now.time - now.started))}",
        f"{counted(len(now.sessions), 'session')} now, {now.sessions_total} in all, "
        f"{now.sessions_killed} killed, {counted(now.clients_refused, 'client')} refused; "
        f"{bytes_text(now.memory)} in tensors",
    ]
    if now.sandbox:  # servers before it do not tell
        lines.append(f"sandbox: {now.sandbox}")
    for session in now.sessions:
        if session.sandbox not in ("", now.sandbox):
            lines.append(f"sandbox of session {session.id}: {session.sandbox}")
    if now.sessions:
        rows = [row(session, now.time) for session in now.sessions]
        lines += ["", table(HEADER, rows, left=3)]
    if now.operators:
        rows = [
            [one.name, count_text(one.calls), duration_text(one.seconds)]
            for one in now.operators[:5]
        ]
        lines += ["", table(("slowest operators", "calls", "time"), rows)]
    return "\n".join(lines)


def row(session: figures.SessionFigures, now: float) -> list[str]:
    devices = f" x{session.devices}" if session.devices > 1 else ""
    return [
        session.id,
        session.peer or "not yet known",
        (session.device or "-")[:32] + devices,
        duration_text(max(0.0, now - session.started)) if session.started else "-",
        bytes_text(session.memory),
        count_text(session.storages),
        count_text(session.calls),
        count_text(session.answers),
        count_text(session.errors),
    ]


def _ask(url: str, options: argparse.Namespace) -> dict[str, Any]:
    connected = machine.connect(url, options.token_file, options.quiet)
    with connected:
        import torch

        from torch_remote import _C

        status = connected.status()
        times = machine.round_trips(connected.devices[0], 0.5, 20)
        return {
            "url": url,
            "host": status["host"],
            "session": status["session"],
            "torch": {"here": torch.__version__, "server": status["torch_version"]},
            "round_trip_seconds": machine.median(times),
            "devices": _C.machine_properties(connected.id),
        }


def _show_machine(told: dict[str, Any]) -> None:
    print(f"{told['url']} on {told['host']} answers in {duration_text(told['round_trip_seconds'])}")
    print(f"torch here {told['torch']['here']}, there {told['torch']['server']}")
    rows = [
        [str(one["name"]), str(one["kind"]), bytes_text(one["total_memory"])]
        for one in told["devices"]
    ]
    print(table(("device", "kind", "memory"), rows, left=2))
