"""Failures of a real GPU: it runs out of memory, a kernel asserts. Uses only `remote`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest
import torch
from helpers import run_python, serving
from torch import Tensor, nn
from torch.nn import functional as F

import torch_remote

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")

WIDTH = 1024
TOO_MANY = 1 << 28  # rows; a terabyte of activations


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(f"unix://{tmp_path_factory.mktemp('server')}/socket") as url:
        yield url


def line() -> int:
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return frame.f_back.f_lineno


def train(device: torch.device, first_batch: int) -> list[Tensor]:
    """The weights after three steps. A batch that is too large is tried again as a small one."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 4)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    row = torch.randn(1, WIDTH).to(device)

    def step(batch: int) -> None:
        optimizer.zero_grad()
        loss = model(row.expand(batch, WIDTH)).square().mean()
        loss.backward()
        optimizer.step()
        loss.item()

    try:
        step(first_batch)
    except torch.OutOfMemoryError:
        assert first_batch == TOO_MANY
        step(8)
    else:
        assert first_batch == 8
    for _ in range(2):
        step(8)
    return [parameter.detach().cpu() for parameter in model.parameters()]


def test_training_goes_on_after_the_gpu_ran_out_of_memory(url: str) -> None:
    with torch_remote.connect(url) as machine:
        want = train(machine.devices[0], 8)
        got = train(machine.devices[0], TOO_MANY)
    assert all(map(torch.equal, got, want))


def test_what_is_out_of_memory_is_told_in_cudas_words(url: str) -> None:
    with torch_remote.connect(url) as machine:
        at = line() + 2
        with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory") as raised:
            torch.ones(TOO_MANY, WIDTH, device=machine.devices[0]).sum().item()
        assert f"{__file__}:{at} in" in str(raised.value)


def test_a_device_assert_ends_the_session_and_names_the_calls_that_it_can_have_been(
    url: str,
) -> None:
    with torch_remote.connect(url) as machine:
        logits = torch.zeros(4, 10, device=machine.devices[0], requires_grad=True)
        classes = torch.tensor([1, 2, 3, 99]).to(machine.devices[0])
        torch_remote.synchronize()
        first, scaled = line(), logits * 2
        last, loss = line(), F.cross_entropy(scaled, classes)
        texts = []
        for value in (loss, scaled, logits):
            with pytest.raises(torch.AcceleratorError, match="device-side assert") as raised:
                value.tolist()
            assert isinstance(raised.value, torch_remote.SessionLost)
            texts.append(str(raised.value))
        assert texts[0] == texts[1] == texts[2]
        assert f"{__file__}:{first} in" in texts[0]
        assert f"{__file__}:{last} in" in texts[0]
    with torch_remote.connect(url) as machine:
        assert torch.ones(3, device=machine.devices[0]).sum().item() == 3


def test_in_blocking_mode_the_call_itself_is_named(url: str) -> None:
    done = run_python(
        f"""
        import torch, torch_remote
        table = torch.ones(3, device=torch_remote.connect({url!r}).devices[0])
        index = torch.tensor([5]).to(table.device)
        table + 1
        table[index]
        table + 2
        """,
        TORCH_REMOTE_BLOCKING="1",
    )
    last = done.stderr.splitlines()[-1]
    assert "DeviceLost" in done.stderr, done.stderr
    assert "called at <string>:6 in <module>: CUDA error: device-side assert" in done.stderr
    assert "calls before it" not in last


def test_memory_that_the_program_has_freed_is_free(url: str) -> None:
    """Locally such a loop needs the memory of a few temporaries, however far ahead it runs."""
    with torch_remote.connect(url) as machine:
        x = torch.ones(1 << 28, device=machine.devices[0])  # a gigabyte
        for _ in range(300):
            x = x + 1
        assert x[0].item() == 301
