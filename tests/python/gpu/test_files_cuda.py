"""Files of the server's whose tensors are on a real GPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from helpers import serving
from safetensors.torch import save_file

import torch_remote

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")

MIB = 1 << 20


def test_tensors_of_many_sizes_arrive_on_the_device(tmp_path: Path) -> None:
    # One block that is read at once has 32 MiB: less, as much, a little more, and many.
    sizes = (1, 3, 32 * MIB - 1, 32 * MIB, 32 * MIB + 1, 200 * MIB)
    state = {
        str(size): torch.frombuffer(bytearray(os.urandom(size)), dtype=torch.uint8)
        for size in sizes
    }
    save_file(state, tmp_path / "model.safetensors")
    with (
        serving(f"unix://{tmp_path}/s", "--files", str(tmp_path)) as url,
        torch_remote.connect(url) as machine,
    ):
        device = machine.devices[0]
        stream = torch.Stream(device)
        with stream:
            aside = torch_remote.load("model.safetensors", device)
        stream.synchronize()
        for loaded in (torch_remote.load("model.safetensors", device), aside):
            assert set(loaded) == set(state)
            for name, value in state.items():
                assert torch.equal(loaded[name].cpu(), value), name


def test_a_file_that_became_shorter_leaves_the_session_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    path.write_bytes(os.urandom(100 * MIB))
    with (
        serving(f"unix://{tmp_path}/s", "--files", str(tmp_path)) as url,
        torch_remote.connect(url) as machine,
    ):
        data = torch_remote.array("data.bin", torch.uint8, machine.devices[0])
        os.truncate(path, 70 * MIB)
        lost = data[:]
        with pytest.raises(torch_remote.RemoteError, match="became shorter while it was read"):
            lost.cpu()
        assert torch.ones(3, device=machine.devices[0]).sum().item() == 3
