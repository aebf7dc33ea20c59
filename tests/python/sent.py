"""Counting the bytes that calls send."""

from __future__ import annotations

from collections.abc import Callable

import torch_remote

FRAME_HEADER = 32  # bytes


def payload(function: Callable[[], object]) -> int:
    """How many bytes a function sends, a last wait of four bytes included. Without the headers of
    frames: how many frames there are depends on how busy the machine is."""
    torch_remote.synchronize()  # what was sent before does not count
    with torch_remote.count() as counted:
        function()
        torch_remote.synchronize()
    return counted.bytes_sent - FRAME_HEADER * counted.frames
