"""Writes seeds for the fuzz targets from a real session. Run it after `make build`:

    .venv/bin/python tests/fuzz/record.py

It runs a small program on a server with a token and cuts what client and server send into handshake
blocks and frames. Each becomes the seed `recorded_…` of the target that reads it. Look at the
difference before you commit it.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
PREAMBLE = 32
HEADER = 32
MESSAGES = 1  # a frame's kind
SIGNATURE = 4  # tags: wire/messages.h
KINDS = {
    6: 0,
    7: 1,
    8: 2,
    10: 3,
    13: 4,
    12: 9,
    16: 15,
    22: 15,
}  # a message's tag → its place in messages_fuzz.cpp

PROGRAM = """
import torch, torch_remote

def wait(): torch.remote.synchronize()

torch.manual_seed(1)
layer = torch.nn.Linear(4, 3).to("remote"); wait()
optimizer = torch.optim.Adam(layer.parameters())
x = torch.arange(8.0).reshape(2, 4).to("remote"); wait()
loss = torch.nn.functional.cross_entropy(layer(x), torch.tensor([0, 2]).to("remote")); wait()
loss.backward(); wait()
optimizer.step(); wait()
y = torch.empty(3, device="remote"); y.normal_(); wait()
y[1:].mul_(2.5); wait()
torch.cat([y, y.flip(0)]); wait()
torch.nonzero(y > 0); wait()
y.untyped_storage().resize_(64); wait()
print(loss.item(), y.tolist())
torch.set_num_threads(1); y.exp(); wait()
try:
    x[torch.tensor([9], device="remote")].sum().item()
except (IndexError, RuntimeError):
    pass
del x, loss; y.sin(); wait()
"""


class Recorder:
    """Passes the bytes of one connection on to a server and keeps them."""

    def __init__(self, listen: str, server: str) -> None:
        self.there = bytearray()
        self.back = bytearray()
        self._server = server
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(listen)
        self._socket.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def _serve(self) -> None:
        near, _ = self._socket.accept()
        far = socket.socket(socket.AF_UNIX)
        far.connect(self._server)
        back = threading.Thread(target=self._pass_on, args=(far, near, self.back))
        back.start()
        self._pass_on(near, far, self.there)
        back.join()

    @staticmethod
    def _pass_on(source: socket.socket, target: socket.socket, kept: bytearray) -> None:
        try:
            while data := source.recv(1 << 16):
                kept += data
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:  # the other side is gone
            pass


def take_block(data: bytes) -> tuple[bytes, bytes]:
    """The body of a handshake's block, and what follows."""
    end = 4 + int.from_bytes(data[:4], "little")
    return data[4:end], data[end:]


def cut_frames(data: bytes) -> list[bytes]:
    frames = []
    while len(data) >= HEADER:
        size = HEADER + int.from_bytes(data[:4], "little")
        frames.append(data[:size])
        data = data[size:]
    return frames


def cut_messages(payload: bytes) -> list[tuple[int, bytes]]:
    """Tag and body of each message: tag:u8 length:varint body."""
    messages = []
    at = 0
    while at < len(payload):
        tag, at = payload[at], at + 1
        size = shift = 0
        while True:
            byte, at = payload[at], at + 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        messages.append((tag, payload[at : at + size]))
        at += size
    return messages


def save(target: str, name: str, seed: bytes) -> None:
    if len(seed) <= 4096:
        (CORPUS / target / f"recorded_{name}").write_bytes(seed)


def save_messages(frames: list[bytes]) -> None:
    """The first message of each kind in a frame."""
    for number, frame in enumerate(frames):
        if frame[4] != MESSAGES:
            continue
        for tag, body in dict(reversed(cut_messages(frame[HEADER:]))).items():
            name = f"{number:02}_{tag:02}"
            if tag == SIGNATURE:
                save("signature_fuzz", name, bytes([body[1]]) + body)
                save("arguments_fuzz", name, b"\1" + bytes([tag]) + body)
            elif tag in KINDS:
                save("messages_fuzz", name, bytes([KINDS[tag]]) + body)


def save_all(there: bytes, back: bytes) -> None:
    save("handshake_fuzz", "preamble", b"\0" + there[:PREAMBLE])
    hello, rest = take_block(there[PREAMBLE:])
    proof, sent = take_block(rest)
    answer, _ = take_block(back)  # not WELCOME, which says where it was recorded
    for name, kind, body in (
        ("hello", 1, hello),
        ("hello_of_the_server", 1, answer),
        ("proof", 2, proof),
    ):
        save("handshake_fuzz", name, bytes([kind]) + body)
    frames = cut_frames(sent)
    save_messages(frames)
    save("frame_fuzz", "session", b"".join(frames))
    # Every seed has the first frames: a session without them ends at once.
    for count in (4, 8, 16, len(frames)):
        save("session_fuzz", f"{count:02}", b"\1" + bytes(7) + b"".join(frames[:count]))


def main() -> None:
    for seed in CORPUS.glob("*/recorded_*"):
        seed.unlink()
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/server"
        token = f"{folder}/token"
        command = [sys.executable, "-m", "torch_remote_cli", "serve", "--listen", f"unix://{path}"]
        server = subprocess.Popen(
            [*command, "--token-file", token], stdout=subprocess.PIPE, text=True
        )
        assert server.stdout is not None
        server.stdout.readline()
        recorder = Recorder(f"{folder}/recorder", path)
        settings = {"TORCH_REMOTE": f"unix://{folder}/recorder", "TORCH_REMOTE_TOKEN_FILE": token}
        subprocess.run([sys.executable, "-c", PROGRAM], env=os.environ | settings, check=True)
        recorder.join()
        server.terminate()
        server.wait()
    save_all(bytes(recorder.there), bytes(recorder.back))


if __name__ == "__main__":
    main()
