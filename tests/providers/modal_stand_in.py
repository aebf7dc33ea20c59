"""Modal's service for tests, on the service base of its own SDK: a sandbox is a process here.

What the sandbox would run in its container is run with a folder of its own as HOME; paths and the
port of the container are translated. `Service.trouble` says what goes wrong.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from grpclib import GRPCError, Status
from grpclib.server import Server
from modal_proto import api_pb2
from modal_proto.api_grpc import ModalClientBase

PROGRAM = "/opt/torch-remote/torch-remote"
GPUS = {"T4", "L4", "A10G", "A100-40GB", "A100-80GB", "L40S", "H100", "H200", "B200"}


class Sandbox:
    """The process of a sandbox, and what it has printed."""

    def __init__(self, definition: Any, secret: dict[str, str], folder: Path) -> None:
        self.definition = definition
        self.is_terminated = False
        self.output = ""
        self.folder = folder
        folder.mkdir()
        words = [
            re.sub(r"tls://0\.0\.0\.0:\d+", "tls://127.0.0.1:0", word).replace(
                PROGRAM, f"{sys.executable} -m torch_remote_cli"
            )
            for word in definition.entrypoint_args
        ]
        environment = {**os.environ, **secret, "HOME": str(folder), "XDG_STATE_HOME": str(folder)}
        self.process = subprocess.Popen(
            words,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output += line

    @property
    def port(self) -> int:
        found = re.search(r"listening on tls://127\.0\.0\.1:(\d+)", self.output)
        return int(found[1]) if found else 0

    def result(self) -> api_pb2.GenericResult:
        status = self.process.poll()
        if status is None:
            return api_pb2.GenericResult()
        if self.is_terminated:
            return api_pb2.GenericResult(status=api_pb2.GenericResult.GENERIC_STATUS_TERMINATED)
        return api_pb2.GenericResult(
            status=api_pb2.GenericResult.GENERIC_STATUS_SUCCESS, exitcode=status
        )

    def end(self) -> None:
        self.is_terminated = True
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Service(ModalClientBase):
    """Answers the calls that the provider makes; every other one is UNIMPLEMENTED."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sandboxes: dict[str, Sandbox] = {}
        self.secrets: dict[str, dict[str, str]] = {}
        self.images: list[Any] = []
        self.apps: list[str] = []
        self.calls: list[str] = []
        self.trouble = ""

    def find(self, request: Any) -> Sandbox:
        if request.sandbox_id not in self.sandboxes:
            raise GRPCError(Status.NOT_FOUND, f"no sandbox {request.sandbox_id}")
        return self.sandboxes[request.sandbox_id]

    async def AppGetOrCreate(self, request: Any) -> Any:
        self.apps.append(request.app_name)
        return api_pb2.AppGetOrCreateResponse(app_id=f"ap-{request.app_name}")

    async def SecretGetOrCreate(self, request: Any) -> Any:
        name = f"st-{len(self.secrets)}"
        self.secrets[name] = dict(request.env_dict)
        return api_pb2.SecretGetOrCreateResponse(secret_id=name)

    async def EnvironmentGetOrCreate(self, request: Any) -> Any:
        answer = api_pb2.EnvironmentGetOrCreateResponse(environment_id="en-1")
        answer.metadata.name = "main"
        answer.metadata.settings.image_builder_version = "2025.06"
        return answer

    async def ImageGetOrCreate(self, request: Any) -> Any:
        self.images.append(request.image)
        answer = api_pb2.ImageGetOrCreateResponse(image_id=f"im-{len(self.images)}")
        answer.result.status = api_pb2.GenericResult.GENERIC_STATUS_SUCCESS
        if self.trouble == "image":
            answer.result.status = api_pb2.GenericResult.GENERIC_STATUS_FAILURE
            answer.result.exception = "pip: no matching distribution for torch"
        return answer

    async def MountBatchedCheckExistence(self, request: Any) -> Any:
        return api_pb2.MountBatchedCheckExistenceResponse()

    async def MountGetOrCreate(self, request: Any) -> Any:
        return api_pb2.MountGetOrCreateResponse(mount_id="mo-1")

    async def SandboxCreate(self, request: Any) -> Any:
        if self.trouble == "quota":
            raise GRPCError(Status.RESOURCE_EXHAUSTED, "GPU limit of the workspace reached")
        definition = request.definition
        if definition.resources.gpu_config.gpu_type not in GPUS:
            raise GRPCError(Status.INVALID_ARGUMENT, "no such gpu")
        name = "sb-" + uuid.uuid4().hex[:22]
        secret = {k: v for each in definition.secret_ids for k, v in self.secrets[each].items()}
        self.sandboxes[name] = Sandbox(definition, secret, self.folder / name)
        if self.trouble == "slow":
            await asyncio.sleep(2)
        return api_pb2.SandboxCreateResponse(sandbox_id=name)

    async def SandboxGetTaskId(self, request: Any) -> Any:
        return api_pb2.SandboxGetTaskIdResponse(task_id="ta-1")

    async def SandboxWait(self, request: Any) -> Any:
        sandbox = self.find(request)
        end = time.monotonic() + request.timeout
        while not sandbox.result().status and time.monotonic() < end:
            await asyncio.sleep(0.02)
        return api_pb2.SandboxWaitResponse(result=sandbox.result())

    async def SandboxGetTunnels(self, request: Any) -> Any:
        sandbox, answer = self.find(request), api_pb2.SandboxGetTunnelsResponse()
        end = time.monotonic() + request.timeout
        while self.trouble == "capacity" or not sandbox.port:
            if time.monotonic() > end or sandbox.process.poll() is not None:
                answer.result.status = api_pb2.GenericResult.GENERIC_STATUS_TIMEOUT
                return answer
            await asyncio.sleep(0.02)
        for each in sandbox.definition.open_ports.ports:
            answer.tunnels.add(
                container_port=each.port,
                host="127.0.0.1",
                port=1,
                unencrypted_host="127.0.0.1" if each.unencrypted else "",
                unencrypted_port=sandbox.port,
            )
        return answer

    async def SandboxTerminate(self, request: Any) -> Any:
        self.find(request).end()
        return api_pb2.SandboxTerminateResponse()

    async def AuthTokenGet(self, request: Any) -> Any:
        parts = [{"alg": "none"}, {"exp": int(time.time()) + 3600}]
        texts = [base64.urlsafe_b64encode(json.dumps(each).encode()).decode() for each in parts]
        return api_pb2.AuthTokenGetResponse(token=".".join([*texts, "x"]))

    async def SandboxListV2(self, request: Any) -> Any:
        answer = api_pb2.SandboxListResponse()
        if request.before_timestamp or request.app_id != "ap-torch-remote":
            return answer
        for name, each in self.sandboxes.items():
            if each.process.poll() is None:
                answer.sandboxes.add(id=name, created_at=1)
        return answer

    async def stream_SandboxGetLogs(self, stream: Any) -> None:
        request = await stream.recv_message()
        sandbox, sent = self.find(request), int(request.last_entry_id or 0)
        end = time.monotonic() + request.timeout
        while time.monotonic() < end:
            is_over, text = sandbox.process.poll() is not None, sandbox.output[sent:]
            if text:
                sent += len(text)
                batch = api_pb2.TaskLogsBatch(entry_id=str(sent))
                batch.items.add(data=text, file_descriptor=request.file_descriptor)
                await stream.send_message(batch)
            elif is_over:
                return await stream.send_message(api_pb2.TaskLogsBatch(eof=True))
            await asyncio.sleep(0.02)


def _answers(name: str) -> Any:
    """The handler of a call: ours, or one that says that there is none."""

    async def answer(self: Service, stream: Any) -> None:
        self.calls.append(name)
        if self.trouble == "auth":
            raise GRPCError(Status.UNAUTHENTICATED, "Token ID is malformed")
        handler = Service.__dict__.get(f"unary_{name}")
        if handler is None:
            raise GRPCError(Status.UNIMPLEMENTED, name)
        await stream.send_message(await handler(self, await stream.recv_message()))

    return answer


for _name in list(ModalClientBase.__abstractmethods__):
    if _name in Service.__dict__:
        setattr(Service, f"unary_{_name}", Service.__dict__[_name])
    if f"stream_{_name}" in Service.__dict__:
        setattr(Service, _name, Service.__dict__[f"stream_{_name}"])
    else:
        setattr(Service, _name, _answers(_name))
Service.__abstractmethods__ = frozenset()
assert not inspect.isabstract(Service)


@contextmanager
def running(folder: Path) -> Iterator[tuple[Service, str]]:
    """The service and its URL. At the end no sandbox is left."""
    service = Service(folder)
    told: queue.Queue[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]] = queue.Queue()

    async def serve() -> None:
        server, ending = Server([service]), asyncio.Event()
        await server.start("127.0.0.1", 0)
        sockets = server._server.sockets  # type: ignore[union-attr]
        told.put((sockets[0].getsockname()[1], asyncio.get_running_loop(), ending))
        await ending.wait()
        server.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    port, loop, ending = told.get(timeout=30)
    try:
        yield service, f"http://127.0.0.1:{port}"
    finally:
        for each in service.sandboxes.values():
            each.end()
        loop.call_soon_threadsafe(ending.set)
        thread.join(10)
