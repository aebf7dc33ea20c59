"""Views are local: they cost no call, share memory both ways, and equal those on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from helpers import DEVICE, assert_matches_cpu, assert_same

import torch_remote

VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "view": lambda x: x.view(6, 4),
    "reshape": lambda x: x.reshape(-1),
    "t": lambda x: x[0].t(),
    "transpose": lambda x: x.transpose(0, 2),
    "permute": lambda x: x.permute(2, 0, 1),
    "movedim": lambda x: x.movedim(0, -1),
    "select": lambda x: x[1],
    "slice": lambda x: x[:, 1:, ::2],
    "narrow": lambda x: x.narrow(2, 1, 2),
    "squeeze": lambda x: x[:1].squeeze(),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "expand": lambda x: x[:, :1].expand(-1, 5, -1),
    "diagonal": lambda x: x.diagonal(0, 1, 2),
    "unfold": lambda x: x.unfold(2, 2, 1),
    "as_strided": lambda x: x.as_strided((2, 3), (4, 2), 1),
    "flatten": lambda x: x.flatten(1),
    "unflatten": lambda x: x.unflatten(2, (2, 2)),
    "detach": lambda x: x.detach(),
    "alias": lambda x: torch.ops.aten.alias(x),
    "view_dtype": lambda x: x.view(torch.int32),
    "view_smaller_dtype": lambda x: x.view(torch.int16),
    "chunk": lambda x: x.chunk(2, 2)[1],
    "split": lambda x: x.split([1, 2], 1)[1],
    "unbind": lambda x: x.unbind(1)[2],
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "mT": lambda x: x.mT,
    "nested": lambda x: x.transpose(1, 2)[:, 1:].permute(1, 0, 2)[0],
}


def block() -> torch.Tensor:
    return torch.arange(24.0).reshape(2, 3, 4)


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_looks_and_reads_as_on_the_cpu(name: str) -> None:
    local, remote = VIEWS[name](block()), VIEWS[name](block().to(DEVICE))
    assert remote.stride() == local.stride()
    assert remote.storage_offset() == local.storage_offset()
    assert remote._is_view() == local._is_view()
    assert_same(remote, local)


@pytest.mark.parametrize("name", sorted(set(VIEWS) - {"expand", "unfold"}))
def test_writing_a_view_writes_its_base(name: str) -> None:
    def write(x: torch.Tensor) -> torch.Tensor:
        VIEWS[name](x).fill_(7)
        return x

    assert_matches_cpu(write, block())


@pytest.mark.parametrize("name", VIEWS)
def test_writing_the_base_is_seen_in_the_view(name: str) -> None:
    def write(x: torch.Tensor) -> torch.Tensor:
        view = VIEWS[name](x)
        x.mul_(2)
        return view

    assert_matches_cpu(write, block())


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_makes_no_call(name: str) -> None:
    remote = block().to("remote")
    with torch_remote.count() as counted:
        VIEWS[name](remote)
    assert (counted.calls, counted.syncs) == (0, 0)


def test_views_of_complex_tensors_share_memory() -> None:
    def write(x: torch.Tensor) -> list[torch.Tensor]:
        x.real.add_(1)
        x.imag.mul_(2)
        torch.view_as_real(x)[0].zero_()
        x.conj()[1] = 3j
        return [x, x.conj(), x.mH, torch.view_as_complex(torch.view_as_real(x))]

    assert_matches_cpu(write, torch.complex(torch.randn(3, 3), torch.randn(3, 3)))


def test_indices_write_through() -> None:
    def write(x: torch.Tensor, index: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
        x[0, 1] = 5
        x[..., -1] += 1
        x[:, index] = x[:, index] * 2
        x[mask] = -1
        x[1, :, 0] = torch.tensor(9.0)
        return [x, x[index % 2], x[:, index, 1]]

    assert_matches_cpu(write, block(), torch.tensor([2, 0]), block() > 20)


def test_set_and_data_share_storage() -> None:
    def share(x: torch.Tensor) -> list[torch.Tensor]:
        other = torch.empty(0, device=x.device)
        other.set_(x)
        other[0].fill_(3)
        alias = torch.ones(1, device=x.device)
        alias.data = x[1]
        alias.zero_()
        return [x, other, alias]

    assert_matches_cpu(share, block())


def test_resize_keeps_what_was_there() -> None:
    x = torch.arange(6.0, device=DEVICE)
    x.resize_(2, 2)
    assert x.tolist() == [[0, 1], [2, 3]]
    x.resize_(8)
    assert x[:6].tolist() == [0, 1, 2, 3, 4, 5]
    x.untyped_storage().resize_(64)
    assert x[:6].tolist() == [0, 1, 2, 3, 4, 5]
    x.untyped_storage().resize_(0)
    assert x.untyped_storage().nbytes() == 0


def test_a_slice_of_a_storage_begins_where_it_says() -> None:
    value = torch.arange(10, dtype=torch.uint8, device=DEVICE)
    storage = value.untyped_storage()

    assert storage[3:6].tolist() == [3, 4, 5]

    storage[3:6].fill_(9)
    assert value.tolist() == [0, 1, 2, 9, 9, 9, 6, 7, 8, 9]
    floats = torch.arange(4.0, device=DEVICE).untyped_storage()[8:16]
    assert torch.empty(0, device=DEVICE).set_(floats).tolist() == [2.0, 3.0]


def test_a_slice_of_a_storage_that_no_element_begins_at_is_refused() -> None:
    floats = torch.arange(4.0, device=DEVICE).untyped_storage()[2:10]
    with pytest.raises(RuntimeError, match="begins at byte 2"):
        torch.empty(0, device=DEVICE).set_(floats).tolist()


def test_a_lazy_clone_is_a_clone() -> None:
    value = torch.arange(3.0, device=DEVICE)
    clone = value._lazy_clone()
    value.zero_()
    assert clone.tolist() == [0.0, 1.0, 2.0]
