"""COO tensors on a remote device: made, moved, printed, saved, multiplied and trained with."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import assert_same, serving
from sparse_parts import DENSE, OTHER, WEIGHT, apart, assert_both_same, coo, saved

import torch_remote

pytestmark = pytest.mark.filterwarnings("ignore")


def hybrid(device: str) -> torch.Tensor:
    """One sparse dimension, one dense one."""
    return torch.sparse_coo_tensor(
        torch.tensor([[3, 0, 3]]), torch.arange(6.0).reshape(3, 2), (4, 2), device=device
    )


# --- COO: making and moving


MAKE_COO: dict[str, Callable[[str], torch.Tensor]] = {
    "of_lists": lambda d: torch.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 2.0], (2, 3), device=d),
    "of_lists_without_size": lambda d: torch.sparse_coo_tensor([[0, 1]], [1, 2], device=d),
    "of_remote_parts": lambda d: torch.sparse_coo_tensor(
        torch.tensor([[0, 1]], device=d), torch.ones(2, device=d), (4,)
    ),
    "checked": lambda d: torch.sparse_coo_tensor(
        [[0, 1], [1, 0]], [1.0, 2.0], (2, 3), device=d, check_invariants=True
    ),
    "coalesced": lambda d: torch.sparse_coo_tensor(
        [[0, 1]], [1.0, 2.0], (4,), device=d, is_coalesced=True
    ),
    "of_nothing": lambda d: torch.sparse_coo_tensor((2, 3), device=d),
    "empty": lambda d: torch.empty(2, 3, layout=torch.sparse_coo, device=d),
    "zeros": lambda d: torch.zeros(2, 3, layout=torch.sparse_coo, device=d),
    "zeros_like": lambda d: torch.zeros_like(coo(d)),
    "empty_like": lambda d: torch.empty_like(coo(d)),
    "to_sparse": lambda d: DENSE.to(d).to_sparse(),
    "to_sparse_of_dims": lambda d: DENSE.to(d).to_sparse(1),
    "of_integers": lambda d: DENSE.to(d).long().to_sparse(),
    "of_complex": lambda d: (DENSE + 1j).to(d).to_sparse(),
    "clone": lambda d: coo(d).clone(),
    "detach": lambda d: coo(d).detach(),
    "deepcopy": lambda d: copy.deepcopy(coo(d)),
    "hybrid": hybrid,
    "spdiags": lambda d: torch.sparse.spdiags(
        torch.arange(6.0).reshape(2, 3).to(d), torch.tensor([0, 1]).to(d), (3, 3)
    ),
}


@pytest.mark.parametrize("way", MAKE_COO)
def test_a_coo_tensor_is_made_as_on_the_cpu(way: str) -> None:
    made = MAKE_COO[way]("remote")
    assert made.device.type == "remote"
    assert made.is_sparse
    assert made._values().device == made._indices().device == made.device
    assert_both_same(MAKE_COO[way])


def test_a_coo_tensor_is_moved_both_ways() -> None:
    for made in (coo("cpu"), coo("cpu", coalesced=True), hybrid("cpu")):
        there = made.to("remote")
        assert there.device == torch.device("remote", 0)
        assert_same(apart(there.to("cpu")), apart(made))
        assert_same(apart(there.cpu()), apart(made))
        assert_same(apart(made.remote()), apart(made))
        assert_same(apart(there.to(torch.float64)), apart(made.to(torch.float64)))
        assert there.to("remote") is there


def test_copy_writes_another_sparse_tensor() -> None:
    def use(device: str) -> torch.Tensor:
        target = torch.zeros(3, 4, layout=torch.sparse_coo, device=device)
        return target.copy_(coo(device))

    assert_both_same(use)
    target = torch.zeros(3, 4, layout=torch.sparse_coo)
    assert_same(apart(target.copy_(coo("remote"))), apart(coo("cpu")))
    with pytest.raises(RuntimeError, match="between dense and sparse"):
        torch.zeros(3, 4, device="remote").copy_(coo("remote"))


def test_metadata_needs_no_server(sync_count: Callable[[Callable[[], object]], int]) -> None:
    tensor = coo("remote")

    def look() -> None:
        assert (tensor._nnz(), tensor.sparse_dim(), tensor.dense_dim()) == (5, 2, 0)
        assert (tensor.shape, tensor.layout) == ((3, 4), torch.sparse_coo)
        assert not tensor.is_coalesced()
        tensor._indices(), tensor._values(), tensor.clone(), tensor.detach()

    assert sync_count(look) == 0


# --- COO: computing

COO_USES: dict[str, Callable[[str], Any]] = {
    "to_dense": lambda d: coo(d).to_dense(),
    "hybrid_to_dense": lambda d: hybrid(d).to_dense(),
    "coalesce": lambda d: coo(d).coalesce(),
    "indices_and_values": lambda d: (coo(d).coalesce().indices(), coo(d).coalesce().values()),
    "add_sparse": lambda d: coo(d) + OTHER.to(d).to_sparse(),
    "add_to_dense": lambda d: DENSE.to(d) + coo(d),
    "sub": lambda d: coo(d) - OTHER.to(d).to_sparse(),
    "mul_number": lambda d: coo(d) * 2,
    "mul_tensor": lambda d: coo(d, coalesced=True) * torch.tensor(2.0, device=d),
    "mul_sparse": lambda d: coo(d) * OTHER.to(d).to_sparse(),
    "mul_dense": lambda d: coo(d) * OTHER.to(d),
    "div": lambda d: coo(d) / 4,
    "neg": lambda d: -coo(d),
    "abs": lambda d: coo(d).abs(),
    "sin": lambda d: torch.sin(coo(d)),
    "pow": lambda d: coo(d).pow(2),
    "sum": lambda d: coo(d).sum(),
    "sparse_sum": lambda d: torch.sparse.sum(coo(d), dim=0),
    "norm": lambda d: coo(d).norm(),
    "mm": lambda d: torch.mm(coo(d), WEIGHT.to(d)),
    "matmul": lambda d: coo(d) @ WEIGHT.to(d),
    "sparse_mm": lambda d: torch.sparse.mm(coo(d), WEIGHT.to(d)),
    "sparse_mm_sparse": lambda d: torch.sparse.mm(coo(d), WEIGHT.to(d).to_sparse()),
    "mv": lambda d: torch.mv(coo(d), WEIGHT[:, 0].contiguous().to(d)),
    "addmm": lambda d: torch.sparse.addmm(torch.ones(3, 5).to(d), coo(d), WEIGHT.to(d)),
    "sspaddmm": lambda d: torch.sspaddmm(
        torch.zeros(3, 5).to(d).to_sparse(), coo(d, coalesced=True), WEIGHT.to(d)
    ),
    "hspmm": lambda d: torch.hspmm(coo(d), WEIGHT.to(d)),
    "bmm": lambda d: torch.bmm(
        torch.stack([DENSE, OTHER]).to(d).to_sparse(), torch.stack([WEIGHT, WEIGHT]).to(d)
    ),
    "softmax": lambda d: torch.sparse.softmax(coo(d), dim=1),
    "log_softmax": lambda d: torch.sparse.log_softmax(coo(d), dim=1),
    "sparse_mask": lambda d: OTHER.to(d).sparse_mask(coo(d, coalesced=True)),
    "transpose": lambda d: coo(d).t(),
    "permute": lambda d: coo(d).permute(1, 0),
    "unsqueeze": lambda d: coo(d).unsqueeze(0),
    "cat": lambda d: torch.cat([coo(d), coo(d, coalesced=True)]),
    "stack": lambda d: torch.stack([coo(d), OTHER.to(d).to_sparse()]),
    "index_select": lambda d: coo(d).index_select(0, torch.tensor([2, 0]).to(d)),
    "select": lambda d: coo(d)[0],
    "narrow_copy": lambda d: coo(d).narrow_copy(1, 1, 2),
    "item": lambda d: coo(d).sum().item(),
    "equal": lambda d: bool(torch.equal(coo(d).to_dense(), DENSE.to(d))),
    "to_csr": lambda d: coo(d).to_sparse_csr(),
    "to_csc": lambda d: coo(d).to_sparse_csc(),
    "to_bsr": lambda d: torch.ones(4, 4, device=d).to_sparse().to_sparse_bsr((2, 2)),
    "isnan": lambda d: torch.isnan(coo(d)),
    "any": lambda d: torch.any(coo(d)),
}


@pytest.mark.parametrize("use", COO_USES)
def test_coo_operators_give_the_bytes_of_the_cpu(use: str) -> None:
    assert_both_same(COO_USES[use])


def test_a_tensor_that_is_wrongly_called_coalesced_is_computed_with() -> None:
    """PyTorch's permute() calls its result so; kernels rely on the order of its indices."""
    dense = torch.arange(60.0).reshape(3, 4, 5) % 7
    assert_both_same(lambda d: dense.to(d).to_sparse().permute(0, 2, 1).to_dense())
    assert_both_same(
        lambda d: torch.sparse_coo_tensor(
            [[2, 0]], [1.0, 2], (4,), is_coalesced=True, device=d
        ).to_dense()
    )


IN_PLACE: dict[str, Callable[[torch.Tensor, str], object]] = {
    "zero": lambda t, d: t.zero_(),
    "add": lambda t, d: t.add_(OTHER.to(d).to_sparse()),
    "add_itself": lambda t, d: t.add_(t),
    "mul_number": lambda t, d: t.mul_(3),
    "mul_sparse": lambda t, d: t.mul_(OTHER.to(d).to_sparse()),
    "div": lambda t, d: t.div_(2),
    "neg": lambda t, d: t.neg_() if t.is_coalesced() else None,
    "write_values": lambda t, d: t._values().mul_(2),
    "resize": lambda t, d: t.sparse_resize_((5, 6), 2, 0),
    "clear": lambda t, d: t.sparse_resize_and_clear_((5, 6), 2, 0),
    "resize_as": lambda t, d: t.resize_as_sparse_(torch.zeros(4, 4).to_sparse().to(d)),
    "sub_out": lambda t, d: torch.sub(t, OTHER.to(d).to_sparse(), out=t),
}


@pytest.mark.parametrize("use", IN_PLACE)
@pytest.mark.parametrize("coalesced", [False, True])
def test_a_coo_tensor_is_changed_in_place(use: str, coalesced: bool) -> None:
    def run(device: str) -> list[torch.Tensor]:
        tensor = coo(device, coalesced=coalesced)
        seen = tensor.detach()
        IN_PLACE[use](tensor, device)
        return [tensor, seen] if use == "write_values" else [tensor]

    assert_both_same(run)


def test_out_of_a_sparse_product() -> None:
    def use(device: str) -> list[torch.Tensor]:
        out = torch.empty(0, device=device)
        torch.mm(coo(device), WEIGHT.to(device), out=out)
        sum_ = torch.zeros(1, 1, device=device).to_sparse()
        torch.add(coo(device), OTHER.to(device).to_sparse(), out=sum_)
        return [out, sum_]

    assert_both_same(use)


def test_a_dense_result_is_asked_for_once(
    sync_count: Callable[[Callable[[], object]], int],
) -> None:
    tensor, weight = coo("remote"), WEIGHT.to("remote")
    torch.mm(tensor, weight)
    assert sync_count(lambda: torch.mm(tensor, weight)) == 0


# --- errors


def test_errors_are_those_of_the_cpu() -> None:
    for use in (
        lambda d: torch.mm(coo(d), torch.ones(3, 5, device=d)),
        lambda d: coo(d) + torch.zeros(2, 2).to_sparse().to(d),
        lambda d: coo(d).indices(),
        lambda d: coo(d).sparse_resize_((1, 1), 2, 0),
        lambda d: torch.sparse_coo_tensor([[5]], [1.0], (2,), device=d, check_invariants=True),
        lambda d: torch.sparse_coo_tensor([[0]], [1.0], (2, 2), device=d),
    ):
        with pytest.raises(RuntimeError) as expected:
            use("cpu")
        with pytest.raises(RuntimeError) as raised:
            use("remote")
        assert str(raised.value).splitlines()[0] == str(expected.value).splitlines()[0]


def test_tensors_of_two_devices_are_not_mixed() -> None:
    for use in (
        lambda: torch.mm(coo("cpu"), WEIGHT.to("remote")),
        lambda: torch.mm(coo("remote"), WEIGHT),
        lambda: coo("remote") + coo("cpu"),
    ):
        with pytest.raises(RuntimeError, match="device"):
            use()
    assert coo("remote").sum().item() == coo("cpu").sum().item()


def test_an_index_outside_the_tensor_is_refused_by_the_server() -> None:
    """PyTorch's kernels would write outside the result."""
    bad = torch.sparse_coo_tensor(
        [[7], [1]], [1.0], (2, 3), device="remote", check_invariants=False
    )
    bad._indices()[0, 0] = 1 << 40
    with pytest.raises(RuntimeError, match=r"inconsistent|found index|out of"):
        bad.to_dense().cpu()
    assert coo("remote").sum().item() == coo("cpu").sum().item()


# --- printing, saving


@pytest.mark.parametrize("make", [coo, hybrid])
def test_a_coo_tensor_is_printed_as_on_the_cpu(make: Callable[[str], torch.Tensor]) -> None:
    expected = repr(make("cpu")).replace("size=", "device='remote:0', size=")
    assert repr(make("remote")) == expected


@pytest.mark.parametrize("make", [coo, hybrid])
def test_a_coo_tensor_is_saved_and_loaded(make: Callable[[str], torch.Tensor]) -> None:
    for target in ("remote:0", "cpu"):
        loaded = torch.load(saved({"x": make("remote")}), map_location=target)["x"]
        assert loaded.device == torch.device(target)
        assert_same(apart(loaded), apart(make("cpu")))
    assert torch.load(saved(make("remote"))).device == torch.device("remote:0")
    assert torch.load(saved(make("cpu")), map_location="remote").device.type == "remote"


def test_no_prediction_was_wrong() -> None:
    with torch_remote.count() as counted:
        torch.sparse.mm(coo("remote"), WEIGHT.to("remote")).cpu()
    assert counted.mispredicted == 0


# --- several machines, several threads


def test_a_sparse_tensor_moves_between_two_servers(tmp_path: Path) -> None:
    first = coo("remote:0")
    with serving(f"unix://{tmp_path}/s") as url, torch_remote.connect(url) as machine:
        there = first.to(machine.devices[0])
        assert there._indices().device == machine.devices[0] == there.device
        made = torch.zeros(2, 3, layout=torch.sparse_coo, device=machine.devices[0])
        assert made._values().device == made.device == machine.devices[0]
        result = torch.sparse.mm(there.coalesce(), WEIGHT.to(there.device))
        assert_same(result, torch.sparse.mm(coo("cpu", coalesced=True), WEIGHT))
        with pytest.raises(RuntimeError, match="same device"):
            torch.mm(first, WEIGHT.to(there.device))
        with pytest.raises(RuntimeError, match="same device"):
            first + there


def test_a_failed_call_leaves_the_sparse_tensors_as_they_were() -> None:
    tensor = coo("remote")
    with pytest.raises(RuntimeError):
        tensor.add_(torch.zeros(2, 2).to_sparse().to("remote"))
    assert_same(apart(tensor), apart(coo("cpu")))
