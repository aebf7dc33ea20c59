"""Limits that a program can reach are refused at the call, by name; the session goes on."""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from helpers import DEADLINE, serving, wait_until

import torch_remote

pytestmark = pytest.mark.slow


def test_a_call_over_more_tensors_than_a_message_describes_is_refused() -> None:
    x = torch.ones(2, device="remote")
    many = [x.view(1, 2) for _ in range(600_000)]
    with pytest.raises(RuntimeError, match=r"aten::cat: \d+ bytes .* more than the 4194304"):
        torch.cat(many)
    assert x.sum().item() == 2


def test_a_call_just_below_what_a_message_describes_is_made() -> None:
    x = torch.arange(2, device="remote")
    many = [x.view(2) for _ in range(400_000)]
    assert torch.cat(many)[-3:].tolist() == [1, 0, 1]
    results = torch._foreach_add(many, 1)
    assert results[-1].tolist() == [1, 2]


def test_a_list_that_is_too_long_is_refused() -> None:
    x = torch.ones(2, device="remote")
    with pytest.raises(RuntimeError, match=r"\d+ elements of a list are more than the 1048576"):
        torch.ops.aten.sum.dim_IntList(x, [0] * ((1 << 20) + 1))
    assert x.sum().item() == 2


def test_a_string_that_is_too_long_is_refused() -> None:
    x = torch.ones(2, device="remote")
    with pytest.raises(RuntimeError, match="70000 characters of a string are more than the 65536"):
        torch.searchsorted(x, x, side="l" * 70_000)
    assert x.sum().item() == 2


def test_more_storages_than_a_free_names_are_freed() -> None:
    gc.collect()
    before = torch_remote.stats().storages_live
    many = list(torch.ones(100_000, 1, device="remote").unbind())
    copies = torch._foreach_add(many, 1)
    del many
    assert copies[7].item() == 2
    del copies
    torch.remote.synchronize()
    assert torch_remote.stats().storages_live == before


def test_a_client_over_max_sessions_is_refused_and_let_in_when_another_has_left(
    tmp_path: Path,
) -> None:
    def is_let_in() -> bool:
        try:
            with torch_remote.connect(url) as machine:
                return torch.ones(2, device=machine.devices[0]).tolist() == [1, 1]
        except ConnectionError as error:
            assert "has 1 session, and takes no more" in str(error)
            return False

    with serving(f"unix://{tmp_path}/s", "--max-sessions", "1") as url:
        with torch_remote.connect(url):
            assert not is_let_in()
        assert wait_until(is_let_in)


def test_a_machine_that_was_stopped_leaves_its_place_to_the_next(tmp_path: Path) -> None:
    with serving(f"unix://{tmp_path}/s", "--max-sessions", "1") as url:
        for _ in range(5):
            with torch_remote.connect(url) as machine:
                assert torch.ones(2, device=machine.devices[0]).tolist() == [1, 1]


def sockets_of(path: Path) -> int:
    """How many sockets of this address there are: the listener's, and one for each client."""
    return sum(
        line.endswith(f" {path}") for line in Path("/proc/net/unix").read_text().splitlines()
    )


def test_of_two_clients_that_wait_for_one_place_each_is_let_in_or_told_why_not(
    tmp_path: Path,
) -> None:
    told: list[str] = []

    def come_in() -> None:
        try:
            with torch_remote.connect(url) as machine:
                told.append(str(torch.ones(2, device=machine.devices[0]).tolist()))
                wait_until(lambda: len(told) == 2)
        except ConnectionError as error:
            told.append(str(error))

    with serving(f"unix://{tmp_path}/s", "--max-sessions", "1") as url:
        first = torch_remote.connect(url)
        assert first.devices
        listening = sockets_of(tmp_path / "s")
        threads = [threading.Thread(target=come_in) for _ in range(2)]
        for thread in threads:
            thread.start()
        assert wait_until(lambda: sockets_of(tmp_path / "s") >= listening + 2 or bool(told))
        first.stop()
        for thread in threads:
            thread.join()
    assert len(told) == 2
    assert all("takes no more (--max-sessions)" in one or one == "[1.0, 1.0]" for one in told), told


def test_an_upload_that_the_server_has_no_memory_for_is_out_of_memory_and_the_session_goes_on() -> (
    None
):
    big = torch.ones(64 << 20, dtype=torch.float32)
    with torch_remote.connect("local") as machine:
        device = machine.devices[0]
        kept = torch.arange(3, device=device)
        kept.tolist()
        pid = int(machine.status()["pid"])
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
        before = resource.prlimit(pid, resource.RLIMIT_AS)
        most = pages * resource.getpagesize() + big.nbytes // 2
        resource.prlimit(pid, resource.RLIMIT_AS, (most, before[1]))
        lost = big.to(device)
        for _ in range(2):  # first its thread is told, then the value is missing
            with pytest.raises(torch.OutOfMemoryError, match="268435456 bytes of host memory"):
                lost[0].item()
        assert (kept + 1).tolist() == [1, 2, 3]
        resource.prlimit(pid, resource.RLIMIT_AS, before)
        lost.copy_(big)  # overwritten whole, it exists
        assert lost[-1].item() == 1


# Promise 7.
def test_an_operator_is_out_of_memory_before_it_has_made_too_much(tmp_path: Path) -> None:
    options = ("--device", "cpu", "--max-memory", "100MiB")
    with (
        serving(f"unix://{tmp_path}/s", *options) as url,
        torch_remote.connect(url) as machine,
    ):
        x = torch.ones(1 << 18, device=machine.devices[0])
        for make in (
            lambda: x.repeat(2048),
            lambda: x.view(-1, 1) @ x.view(1, -1)[:, : 1 << 11],
            lambda: torch.cdist(x.view(-1, 1)[: 1 << 15], x.view(-1, 1)[: 1 << 15]),
        ):
            with pytest.raises(torch.OutOfMemoryError):
                make().sum().item()
            assert (x + 1).sum().item() == 2 << 18
        facts = Path(f"/proc/{machine.status()['pid']}/status").read_text()
        peak = next(line for line in facts.splitlines() if line.startswith("VmHWM:"))
        assert int(peak.split()[1]) < 1 << 20, "a GiB was used before it was refused"


# Promise 7.
def test_a_session_has_many_threads_and_kernels_under_a_small_limit(tmp_path: Path) -> None:
    """What PyTorch needs for itself is beside the limit: threads, generated code, workspaces."""
    options = ("--device", "cpu", "--max-memory", "64MiB")
    with (
        serving(f"unix://{tmp_path}/s", *options) as url,
        torch_remote.connect(url) as machine,
    ):
        device = machine.devices[0]
        threads = torch.get_num_threads()
        try:
            torch.set_num_threads(64)  # the server sets as many as it allows
            x = torch.ones(4, 16, 32, 32, device=device)
            y = torch.nn.functional.conv2d(x, torch.ones(16, 16, 3, 3, device=device), padding=1)
            assert y[0, 0, 5, 5].item() == 144
            a = torch.ones(512, 512, device=device)
            assert (a @ a)[0, 0].item() == 512
            assert torch.linalg.svdvals(a)[0].item() == pytest.approx(512, rel=1e-4)
            assert torch.fft.fft(a)[0, 0].real.item() == 512
            assert a.sort()[0].cumsum(0)[-1, 0].item() == 512
        finally:
            torch.set_num_threads(threads)


# Promise 7.
def test_a_session_is_ended_before_others_where_memory_is_short(tmp_path: Path) -> None:
    with (
        serving(f"unix://{tmp_path}/s") as url,
        torch_remote.connect(url) as machine,
    ):
        own = int(Path("/proc/self/oom_score_adj").read_text())
        score = Path(f"/proc/{machine.status()['pid']}/oom_score_adj").read_text()
        assert int(score) == max(own, 500)


def test_a_session_over_max_memory_is_out_of_memory_and_goes_on(tmp_path: Path) -> None:
    with (
        serving(f"unix://{tmp_path}/s", "--max-memory", "1MiB") as url,
        torch_remote.connect(url) as machine,
    ):
        device = machine.devices[0]
        kept = torch.ones(100_000, device=device)
        for make in (
            lambda: torch.zeros(200_000, device=device),
            lambda: torch.cat([kept, kept]),
            lambda: torch.randn(200_000).to(device),
            lambda: kept.clone().resize_(200_000),
        ):
            with pytest.raises(torch.OutOfMemoryError, match=r"1048576 \(serve --max-memory\)"):
                make().sum().item()
        with pytest.raises(torch.OutOfMemoryError):
            torch.stack([kept, kept])  # at the call: the client knows the limit
        for _ in range(3):
            with pytest.raises(torch.OutOfMemoryError):
                torch.unique(kept.cumsum(0)[:60_000], return_inverse=True)
        assert kept[0].item() == 1  # less than 1 MiB is freed at the end of a frame
        assert (kept + 1).sum().item() == 200_000  # as much as fits


def test_memory_kept_for_uploads_is_given_up_for_tensors(tmp_path: Path) -> None:
    with (
        serving(f"unix://{tmp_path}/s", "--max-memory", "17MiB") as url,
        torch_remote.connect(url) as machine,
    ):
        local = torch.ones(1 << 20)  # 4 MiB
        x = torch.zeros(1 << 20, device=machine.devices[0])
        for i in range(5):
            x.copy_(local.fill_(i))
        rest = [torch.full((1 << 20,), 5.0, device=machine.devices[0]) for _ in range(3)]
        assert [t.min().item() for t in (x, *rest)] == [4, 5, 5, 5]
        with pytest.raises(torch.OutOfMemoryError):
            torch.zeros(1 << 19, device=machine.devices[0]).sum().item()
        x.copy_(local.fill_(6))
        assert x.max().item() == 6


def test_a_program_far_ahead_needs_no_more_memory_than_a_local_one(tmp_path: Path) -> None:
    with (
        serving(f"unix://{tmp_path}/s", "--max-memory", "24MiB") as url,
        torch_remote.connect(url) as machine,
        torch_remote.count() as counted,
    ):
        x = torch.ones(800_000, device=machine.devices[0])  # 3 MiB
        for _ in range(200):
            x = (x + 1) * 0.5
        assert x[0].item() == 1
    assert counted.syncs == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--max-memory", "10"], "--max-memory: '10' is not an amount of memory"),
        (["--lease", "soon"], "--lease: 'soon' is not a duration"),
        (["--max-sessions", "0"], "--max-sessions"),
    ],
)
def test_a_server_names_the_option_that_it_does_not_understand(
    arguments: list[str], words: str, tmp_path: Path
) -> None:
    command = [
        sys.executable,
        "-m",
        "torch_remote_cli",
        "serve",
        "--listen",
        f"unix://{tmp_path}/s",
    ]
    server = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=DEADLINE
    )
    assert server.returncode != 0
    assert words in server.stderr


@pytest.mark.parametrize(
    "variable", ["TORCH_REMOTE_PATIENCE", "TORCH_REMOTE_KEEPALIVE", "TORCH_REMOTE_NET"]
)
def test_a_client_names_the_variable_that_it_does_not_understand(variable: str) -> None:
    program = "import torch, torch_remote; torch.ones(2, device='remote').sum().item()"
    client = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, variable: "soon"},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert client.returncode != 0
    error = client.stderr.splitlines()[-1]  # of the program, not of its server
    assert f"{variable}: 'soon' is not a" in error
