"""RunPod's REST interface for tests: a pod is a process here. `Service.trouble` says what fails."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

KEY = "rp-test"


class Service:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pods: dict[str, dict[str, Any]] = {}
        self.trouble = ""

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        name = path.removeprefix("/pods").strip("/")
        if method == "POST":
            return self._create(body)
        if not name:
            return 200, [self._told(each) for each in self.pods.values()]
        if name not in self.pods:
            return 404, {"error": "pod not found"}
        if method == "DELETE":
            self.end(name)
            return 204, None
        return 200, self._told(self.pods[name])

    def _create(self, body: dict[str, Any]) -> tuple[int, Any]:
        if self.trouble == "capacity":
            return 500, {"error": "There are no instances currently available"}
        if self.trouble == "funds":
            return 402, {"error": "Your balance is too low"}
        name = f"pod{len(self.pods)}"
        home = self.folder / f"{body['name']}-home"
        home.mkdir()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        script = body["dockerStartCmd"][0].replace("0.0.0.0:4711", f"127.0.0.1:{port}")
        script = script.replace("torch-remote serve", f"{sys.executable} -m torch_remote_cli serve")
        process = subprocess.Popen(
            [*body["dockerEntrypoint"], script],
            env={**os.environ, **body["env"], "HOME": str(home), "RUNPOD_POD_ID": name},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.pods[name] = {"id": name, "port": port, "process": process, "body": body}
        return 201, self._told(self.pods[name])

    def _told(self, pod: dict[str, Any]) -> dict[str, Any]:
        is_over = pod["process"].poll() is not None
        return {
            "id": pod["id"],
            "name": pod["body"]["name"],
            "desiredStatus": "EXITED" if is_over else "RUNNING",
            "publicIp": "127.0.0.1",
            "portMappings": {"4711": pod["port"]},
            "costPerHr": 2.99,
        }

    def end(self, name: str) -> None:
        process = self.pods.pop(name)["process"]
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def running(folder: Path) -> Iterator[tuple[Service, str]]:
    service = Service(folder)

    class Handler(BaseHTTPRequestHandler):
        def handle_one(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length) or b"{}")
            status, told = 401, {"error": "Unauthorized"}
            if self.headers["Authorization"] == f"Bearer {KEY}":
                status, told = service.answer(self.command, self.path, body)
            self.send_response(status)
            content = b"" if told is None else json.dumps(told).encode()
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_DELETE = handle_one

        def log_message(self, *words: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield service, f"http://127.0.0.1:{server.server_port}"
    finally:
        for name in list(service.pods):
            service.end(name)
        server.shutdown()
        server.server_close()
