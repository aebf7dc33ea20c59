"""Large CPU tensors that downloads make: their memory is kept, and they are ordinary tensors."""

from __future__ import annotations

import io
import os
import resource
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from helpers import assert_runs, assert_same

from torch_remote import _C

MIB = 1 << 20
COUNT = 8 * MIB // 4
BOUND = 512 * MIB  # kMaxKeptBytes in client/memory/downloads.h


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    torch.remote.empty_cache()
    yield
    torch.remote.empty_cache()


@pytest.fixture
def remote() -> torch.Tensor:
    return torch.arange(COUNT, dtype=torch.int32, device="remote")


def expected() -> torch.Tensor:
    return torch.arange(COUNT, dtype=torch.int32)


def page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


@pytest.mark.parametrize("download", [lambda t: t.cpu(), lambda t: t.to("cpu")])
def test_a_loop_of_downloads_uses_the_same_memory_again(
    remote: torch.Tensor, download: Any
) -> None:
    y = download(remote)
    y = download(remote)
    addresses = set()
    before = page_faults()
    for _ in range(10):
        y = download(remote)
        addresses.add(y.data_ptr())
    assert len(addresses) == 2
    assert page_faults() - before < COUNT * 4 // 4096  # less than one of the ten would cost
    assert_same(y, expected())


def test_what_is_kept_is_counted_bounded_and_given_back() -> None:
    big = torch.ones(96 * MIB, dtype=torch.uint8, device="remote")
    assert _C.kept_download_bytes() == 0
    here = [big.cpu() for _ in range(7)]
    assert _C.kept_download_bytes() == 0
    here.clear()
    assert BOUND - 96 * MIB < _C.kept_download_bytes() <= BOUND
    torch.remote.empty_cache()
    assert _C.kept_download_bytes() == 0


def test_a_tensor_that_is_held_is_not_overwritten(remote: torch.Tensor) -> None:
    first = remote.cpu()
    view = first[10:20]
    del first
    second = (remote + 1).cpu()
    third = (remote + 2).cpu()
    assert view.tolist() == list(range(10, 20))
    assert_same(second, expected() + 1)
    assert_same(third, expected() + 2)


def test_a_little_smaller_download_fits_and_a_much_smaller_one_does_not(
    remote: torch.Tensor,
) -> None:
    remote.cpu()
    kept = _C.kept_download_bytes()
    little = remote[: COUNT - 1000].cpu()
    assert (kept, _C.kept_download_bytes()) == (4 * COUNT, 0)
    assert little.untyped_storage().nbytes() == 4 * (COUNT - 1000)
    del little
    assert remote[: COUNT // 2].cpu().numel() == COUNT // 2
    assert _C.kept_download_bytes() >= kept


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.bfloat16, torch.bool])
def test_layouts_and_dtypes_are_those_of_an_ordinary_download(dtype: torch.dtype) -> None:
    local = torch.arange(4 * MIB).remainder(2).to(dtype).reshape(2, 4, 512, -1)
    remote = local.to("remote")
    for view in (
        lambda t: t,
        lambda t: t.transpose(1, 3),
        lambda t: t[:, 1:3],
        lambda t: t[1:],
        lambda t: t[..., ::2],
        lambda t: t.contiguous(memory_format=torch.channels_last),
        lambda t: t.conj(),
    ):
        there, expected = view(remote), view(local).to("cpu", copy=True)
        for here in (there.cpu(), there.to("cpu", copy=True)):
            assert_same(here, expected)
            assert (here.stride(), here.storage_offset()) == (expected.stride(), 0)
            assert here.is_pinned() is here.is_conj() is False


def test_it_resizes_pickles_shares_and_is_numpys(remote: torch.Tensor) -> None:
    here = remote.cpu()
    saved = io.BytesIO()
    torch.save(here, saved)
    saved.seek(0)
    assert_same(torch.load(saved), expected())
    array = here.numpy()
    array[0] = 77
    assert here[0] == 77
    del here
    remote.cpu()
    assert array[0] == 77 and array[-1] == COUNT - 1  # numpy keeps the memory

    here = remote.cpu()
    here.share_memory_()
    assert here.is_shared()
    assert_same(here, expected())

    here = remote.cpu()
    here.resize_(2 * COUNT)
    assert_same(here[:COUNT], expected())
    here.untyped_storage().resize_(16)
    assert here.untyped_storage().tolist()[:8] == [0, 0, 0, 0, 1, 0, 0, 0]
    here.untyped_storage().resize_(0)
    assert _C.kept_download_bytes() > 0
    assert_same(torch._lazy_clone(remote.cpu()), expected())


def test_it_works_in_inference_mode_and_with_gradients(remote: torch.Tensor) -> None:
    with torch.inference_mode():
        inside = remote.cpu()
        assert inside.is_inference()
    assert not remote.cpu().is_inference()
    weight = torch.ones(MIB, device="remote", requires_grad=True)
    (weight.cpu() * 3).sum().backward()
    assert weight.grad is not None and weight.grad.device.type == "remote"
    assert weight.grad[5].item() == 3


def test_a_forked_child_frees_and_keeps_its_tensors(remote: torch.Tensor) -> None:
    kept = remote.cpu()
    freed = remote.cpu()
    child = os.fork()
    if child == 0:
        del freed
        kept[0] = 7  # nothing larger: OpenMP's threads are not in the child
        os._exit(0 if kept[:4].tolist() == [7, 1, 2, 3] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert_same(freed, expected())
    assert_same(kept, expected())


def test_threads_download_at_once() -> None:
    assert_runs("""
        import threading, torch, torch_remote
        x = torch.arange(500_000, device="remote")
        wrong = []

        def run(number):
            for turn in range(30):
                if not torch.equal((x + number).cpu(), torch.arange(500_000) + number):
                    wrong.append(number)

        threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert not wrong, wrong
    """)
