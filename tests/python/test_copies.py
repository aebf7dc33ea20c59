"""Copies to, from and within the device: any dtype pair, any layout."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from helpers import DEVICE, assert_matches_cpu, assert_same

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16,
    torch.uint32, torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.complex32, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip

LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "whole": lambda x: x,
    "transposed": lambda x: x.transpose(0, 2),
    "strided": lambda x: x[1::2, ::3],
    "offset": lambda x: x[2:, 1, 3:],
    "expanded": lambda x: x[:1].expand(5, *x.shape[1:]),
    "permuted": lambda x: x.permute(1, 2, 0)[::2],
    "overlapping": lambda x: x.reshape(-1).unfold(0, 5, 2),
    "empty": lambda x: x[:0],
    "empty_column": lambda x: x[:, :0],
    "scalar": lambda x: x[1, 2, 3],
}


def values(dtype: torch.dtype) -> torch.Tensor:
    """Small numbers that every dtype holds."""
    return torch.arange(12).remainder(7).to(torch.float32).to(dtype)


def cube() -> torch.Tensor:
    return torch.arange(5.0 * 6 * 7).reshape(5, 6, 7)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_goes_there_and_back(dtype: torch.dtype) -> None:
    tensor = values(dtype)
    there = tensor.to(DEVICE)
    assert there.dtype == dtype and there.device.type == torch.device(DEVICE).type
    assert_same(there.cpu(), tensor)
    assert_same(there.clone(), tensor)


@pytest.mark.parametrize(
    ("source", "target"), list(itertools.permutations(DTYPES, 2)), ids=lambda dtype: str(dtype)[6:]
)
def test_every_pair_of_dtypes_converts_as_on_the_cpu(
    source: torch.dtype, target: torch.dtype
) -> None:
    tensor = values(source)
    expected = tensor.to(target)
    assert_same(tensor.to(DEVICE).to(target), expected)
    assert_same(tensor.to(DEVICE, target), expected)
    assert_same(tensor.to(DEVICE).to("cpu", target), expected)
    assert_same(torch.empty(12, dtype=target, device=DEVICE).copy_(tensor), expected)
    assert_same(torch.empty(12, dtype=target).copy_(tensor.to(DEVICE)), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_views_of_any_layout_go_there_and_back(layout: str) -> None:
    view = LAYOUTS[layout]
    local, remote = cube(), cube().to(DEVICE)
    assert_same(view(remote).cpu(), view(local))
    assert_same(view(local).to(DEVICE), view(local))
    assert view(local).to(DEVICE, copy=True).stride() == view(local).to("cpu", copy=True).stride()
    assert_same(view(remote).contiguous(), view(local))


@pytest.mark.parametrize("layout", sorted(set(LAYOUTS) - {"expanded", "overlapping"}))
def test_views_of_any_layout_can_be_written_from_either_side(layout: str) -> None:
    view = LAYOUTS[layout]
    expected = torch.zeros(5, 6, 7)
    view(expected).copy_(view(cube()))
    for source in (view(cube()), view(cube().to(DEVICE)), view(cube()).contiguous()):
        remote = torch.zeros(5, 6, 7, device=DEVICE)
        view(remote).copy_(source)
        assert_same(remote, expected)
    local = torch.zeros(5, 6, 7)
    view(local).copy_(view(cube().to(DEVICE)))
    assert_same(local, expected)


def test_a_copy_broadcasts() -> None:
    for row in (torch.arange(7.0), torch.arange(6.0)[:, None], torch.tensor(3.0)):
        expected = torch.zeros(5, 6, 7).copy_(row)
        assert_same(torch.zeros(5, 6, 7, device=DEVICE).copy_(row), expected)
        assert_same(torch.zeros(5, 6, 7, device=DEVICE).copy_(row.to(DEVICE)), expected)
        assert_same(torch.zeros(5, 6, 7).copy_(row.to(DEVICE)), expected)


def test_conjugate_and_negative_views_copy_their_values() -> None:
    tensor = torch.complex(torch.randn(3, 4), torch.randn(3, 4))
    remote = tensor.to(DEVICE)
    for view in (torch.conj, lambda x: x.conj().imag, lambda x: x.conj().t()):
        assert_same(view(remote).cpu(), view(tensor))
        assert_same(view(tensor).to(DEVICE), view(tensor))
        assert_same(view(remote).clone(), view(tensor))


def test_not_a_number_and_infinity_survive() -> None:
    tensor = torch.tensor([math.nan, math.inf, -math.inf, -0.0])
    assert_same(tensor.to(DEVICE).cpu(), tensor)


@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
def test_the_memory_format_is_kept(memory_format: torch.memory_format) -> None:
    image = torch.randn(2, 3, 4, 5).contiguous(memory_format=memory_format)
    remote = image.to(DEVICE)
    assert remote.stride() == image.stride()
    assert remote.cpu().stride() == image.stride()
    assert remote.half().stride() == image.stride()
    assert_same(remote.cpu(), image)
    other = image.to(DEVICE, memory_format=torch.channels_last)
    assert other.is_contiguous(memory_format=torch.channels_last)
    assert_same(other, image)


def test_the_source_may_change_after_an_upload() -> None:
    for size in (10, 3_000_000):
        for non_blocking in (False, True):
            tensor = torch.ones(size)
            remote = tensor.to(DEVICE, copy=True, non_blocking=non_blocking)
            tensor.zero_()
            assert remote.min().item() == 1


LARGE = 3_000_001  # 12 MB of float: travels beside the calls


def test_a_call_before_a_large_upload_reads_the_old_value() -> None:
    x = torch.zeros(LARGE, device=DEVICE)
    sources = [torch.full((LARGE,), float(i)).pin_memory() for i in range(1, 5)]
    for non_blocking in (False, True):
        x.zero_()
        before = []
        for source in sources:
            before.append(x + 0)
            x.copy_(source, non_blocking=non_blocking)
        before.append(x)
        for expected, value in enumerate(before):
            assert value.min().item() == value.max().item() == expected


def test_large_uploads_to_the_same_tensor_overlap_in_order() -> None:
    x = torch.zeros(LARGE, device=DEVICE)
    expected = torch.zeros(LARGE)
    kept = []
    for i in range(1, 9):
        part = slice(None) if i % 3 == 1 else slice(i * 1000, LARGE - i * 200_000)
        source = torch.full_like(expected[part], float(i)).pin_memory()
        kept.append(source)
        x[part].copy_(source, non_blocking=True)
        expected[part] = source
    assert torch.equal(x.cpu(), expected)


def test_a_read_on_its_way_keeps_its_value_while_uploads_follow() -> None:
    x = torch.ones(LARGE, device=DEVICE)
    reads = []
    for i in range(2, 6):
        reads.append(torch.empty(LARGE).pin_memory().copy_(x, non_blocking=True))
        x.copy_(torch.full((LARGE,), float(i)))
    torch.remote.synchronize()
    for expected, value in enumerate(reads, start=1):
        assert value.min().item() == value.max().item() == expected


def test_a_large_download_fills_its_destination_and_nothing_beside_it() -> None:
    source = torch.arange(3.0 * 1000 * 1000).reshape(3, 1000, 1000)
    remote = source.to(DEVICE)
    around = torch.full((5, 1000, 1000), -1.0)
    around[1:4].copy_(remote)
    assert torch.equal(around[1:4], source)
    assert around[0].max() == around[4].max() == -1
    for view in (lambda t: t.permute(2, 0, 1), lambda t: t.transpose(1, 2), lambda t: t[:, ::2]):
        destination = view(torch.full((3, 1000, 1000), -1.0))
        destination.copy_(view(remote))
        assert torch.equal(destination, view(source))
    wide = torch.full((3, 1000, 1000), -1.0, dtype=torch.float64)
    assert torch.equal(wide.copy_(remote), source.double())
    assert torch.equal(torch.empty(2, 3, 1000, 1000).copy_(remote)[1], source)


def test_a_download_to_a_lazy_clone_leaves_the_original_alone() -> None:
    original = torch.zeros(LARGE)
    clone = torch._lazy_clone(original)
    clone.copy_(torch.ones(LARGE, device=DEVICE))
    assert original.max().item() == 0 and clone.min().item() == 1


def test_a_large_tensor_goes_there_and_back() -> None:
    tensor = torch.randint(0, 255, (20_000_001,), dtype=torch.uint8)
    assert torch.equal(tensor.to(DEVICE).cpu(), tensor)


def test_pinned_memory_uploads_and_downloads() -> None:
    pinned = torch.arange(1000.0).pin_memory()
    assert pinned.is_pinned()
    remote = pinned.to("remote", non_blocking=True)
    torch.remote.synchronize()
    assert_same(remote, torch.arange(1000.0))
    back = torch.empty(1000).pin_memory().copy_(remote, non_blocking=True)
    torch.remote.synchronize()
    assert_same(back, torch.arange(1000.0))


def test_overlapping_halves_copy_as_on_the_cpu() -> None:
    def shift(x: torch.Tensor) -> torch.Tensor:
        x[2:].copy_(x[:-2].clone())
        return x

    assert_matches_cpu(shift, torch.arange(100.0))


def test_to_without_change_is_the_same_tensor_and_copy_is_not() -> None:
    x = torch.ones(3, device=DEVICE)
    assert x.to(DEVICE) is x
    assert x.to(DEVICE, copy=True).data_ptr() != x.data_ptr()


def test_fill_and_zero_and_item_work_for_every_dtype() -> None:
    for dtype in DTYPES:
        tensor = torch.zeros(3, dtype=dtype, device=DEVICE)
        assert_same(tensor, torch.zeros(3, dtype=dtype))
        assert_same(tensor.fill_(1), torch.ones(3, dtype=dtype))
        assert tensor[0].item() == 1
