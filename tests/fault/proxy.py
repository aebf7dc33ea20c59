"""The fault proxy: a Unix or loopback TCP socket that passes bytes on, and fails as a network does.

It knows where frames begin (docs/protocol.md), so that a fault can be at a byte of a header, and
whether a connection begins or resumes a session. Of a tls:// server it sees the preamble only.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from urllib.parse import urlsplit

PREAMBLE = 32
HEADER = 32
THERE, BACK = "there", "back"  # from client to server, from server to client


@dataclass(frozen=True)
class Fault:
    """What happens to one connection.

    cut        both sides are closed before the byte
    truncate   the receiver sees the end of the stream there; the other direction goes on
    half_open  from there on nothing passes in either direction, and no side is closed
    flip       one bit of the byte changes
    """

    kind: str = "cut"
    direction: str = THERE
    # Bytes of that direction; if the connection begins a session, after the handshake. With TLS:
    # after the first byte of the connection.
    after: int = 0
    # Counts from the beginning of this frame of the connection instead; the first is 0.
    frame: int | None = None


class Walker:
    """Follows one direction of a connection: the place of each byte in handshake or frame."""

    def __init__(self, fault: Fault | None, direction: str, is_encrypted: bool = False) -> None:
        self._fault = fault if fault and fault.direction == direction else None
        self._is_encrypted = is_encrypted
        self._handshake = [PREAMBLE, 4, 4] if direction == THERE else [4, 4]
        self._head = bytearray()
        self._left = 0  # bytes of a block or payload
        self._frame = -1
        self._offset = 0  # in the frame
        self._counted = 0
        self.is_new = True

    def place(self, data: bytes) -> int | None:
        """Where in the data the fault is, or None."""
        if self._is_encrypted:
            return self._find(len(data), in_frames=True)
        at = 0
        while at < len(data):
            if not self._left and not self._head and not self._handshake:
                if self._ends_before_the_fault():
                    self._fault = None
                    return at
                self._frame += 1
                self._offset = 0
            in_frames = self._frame >= 0
            size = self._next(data[at:])
            found = self._find(size, in_frames)
            if found is not None:
                return at + found
            if in_frames:
                self._offset += size
            at += size
        return None

    def _ends_before_the_fault(self) -> bool:
        """Whether the frame ends before the fault's place in it: then the fault is at its end."""
        return self._fault is not None and self._frame == self._fault.frame

    def _next(self, data: bytes) -> int:
        """Takes the data that belongs to one part."""
        if self._left:
            size = min(self._left, len(data))
            self._left -= size
            return size
        wanted = self._handshake[0] if self._handshake else HEADER
        size = min(wanted - len(self._head), len(data))
        self._head += data[:size]
        if len(self._head) < wanted:
            return size
        if wanted == PREAMBLE and self._handshake:
            self.is_new = self._head[12] == 0
        else:
            self._left = int.from_bytes(self._head[:4], "little")
        self._head.clear()
        if self._handshake:
            self._handshake.pop(0)
        return size

    def _find(self, size: int, in_frames: bool) -> int | None:
        fault = self._fault
        if fault is None:
            return None
        if fault.frame is not None:
            begin = self._offset if self._frame == fault.frame else None
        elif in_frames or not self.is_new:
            begin = self._counted
            self._counted += size
        else:
            begin = None
        if begin is None or not begin <= fault.after < begin + size:
            return None
        self._fault = None
        return fault.after - begin


class FaultProxy:
    """Listens on `listen` (None: a TCP port) and passes connections to the server at `url`.

    `plan(number)` gives the fault of each connection. `fired` counts the faults that happened.
    """

    def __init__(
        self,
        url: str,
        plan: Callable[[int], Fault | None],
        *,
        path: str | None = None,
        delay: float = 0,
        rate: int = 0,
    ) -> None:
        self._upstream = urlsplit(url)
        self._plan = plan
        self._path = path
        self._delay = delay  # seconds that each piece of data waits
        self._rate = rate  # bytes per second; 0: no limit
        self._connections: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.accepted = 0
        self.fired = 0
        self.closed = threading.Event()  # if set, no connection is accepted
        self.url = ""

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def hang_up(self) -> None:
        """Cuts every connection."""
        asyncio.run_coroutine_threadsafe(self._cut_all(), self._loop).result()

    async def _listen(self) -> None:
        if self._path is not None:
            self._server = await asyncio.start_unix_server(self._accept, self._path)
            self.url = f"unix://{self._path}"
            return
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"tcp://127.0.0.1:{port}"
        if self.is_encrypted:
            self.url = f"tls://127.0.0.1:{port}?{self._upstream.query}"

    async def _stop(self) -> None:
        self._server.close()
        await self._cut_all()

    async def _cut_all(self) -> None:
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if not self.closed.is_set():
                await self._serve(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fault = self._plan(self.accepted)
        self.accepted += 1
        if self._upstream.scheme == "unix":
            far_reader, far_writer = await asyncio.open_unix_connection(self._upstream.path)
        else:
            far_reader, far_writer = await asyncio.open_connection(
                self._upstream.hostname, self._upstream.port
            )
        line = _Line(self, fault)
        try:
            await line.run((reader, far_writer), (far_reader, writer))
        finally:
            # What was passed on still arrives.
            for end in (far_writer, writer):
                end.close()
            for end in (far_writer, writer):
                with suppress(OSError):
                    await end.wait_closed()

    @property
    def is_encrypted(self) -> bool:
        return self._upstream.scheme == "tls"

    async def pause(self, size: int) -> None:
        if self._delay or self._rate:
            await asyncio.sleep(self._delay + (size / self._rate if self._rate else 0))

    @property
    def piece(self) -> int:
        return max(64, self._rate // 50) if self._rate else 1 << 16


Pipe = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Line:
    """One connection: two directions, and the fault in one of them."""

    def __init__(self, proxy: FaultProxy, fault: Fault | None) -> None:
        self._proxy = proxy
        self._fault = fault
        self._walkers = {side: Walker(fault, side, proxy.is_encrypted) for side in (THERE, BACK)}
        self._is_silent = False

    async def run(self, there: Pipe, back: Pipe) -> None:
        tasks = [
            asyncio.create_task(self._pass(*there, THERE)),
            asyncio.create_task(self._pass(*back, BACK)),
        ]
        try:
            # The end of one direction ends the connection, as in our streams.
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, side: str
    ) -> None:
        walker = self._walkers[side]
        while data := await reader.read(self._proxy.piece):
            await self._proxy.pause(len(data))
            if side == BACK:
                walker.is_new = self._walkers[THERE].is_new
            at = walker.place(data)
            if at is not None:
                assert self._fault is not None
                self._proxy.fired += 1
                data = await self._fail(self._fault.kind, data, at, writer)
                if data is None:
                    return
            if self._is_silent:
                continue
            writer.write(data)
            await writer.drain()

    async def _fail(
        self, kind: str, data: bytes, at: int, writer: asyncio.StreamWriter
    ) -> bytes | None:
        if kind == "flip":
            changed = bytearray(data)
            changed[at] ^= 1 << (at % 8)
            return bytes(changed)
        writer.write(data[:at])
        await writer.drain()
        if kind == "cut":
            return None
        if kind == "truncate":
            writer.write_eof()
        self._is_silent = True
        if kind == "truncate":
            await asyncio.sleep(3600)  # until the other direction ends
        return b""
