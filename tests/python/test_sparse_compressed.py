"""CSR, CSC, BSR and BSC tensors on a remote device."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import assert_same
from sparse_parts import PARTS, apart, assert_both_same, saved

pytestmark = pytest.mark.filterwarnings("ignore")

DENSE = torch.tensor([[1.5, 0, -2, 0], [0, 3, 0, 0], [0, 0, 0, 0.25], [0, 0, 0, 0]])
WEIGHT = torch.linspace(-1, 1, 20).reshape(4, 5)
LAYOUTS = [layout for layout in PARTS if layout != torch.sparse_coo]


def of_layout(layout: torch.layout, device: str, dense: torch.Tensor = DENSE) -> torch.Tensor:
    blocks = {"blocksize": (2, 2)} if layout in (torch.sparse_bsr, torch.sparse_bsc) else {}
    return dense.to(device).to_sparse(layout=layout, **blocks)


def csr(device: str, dense: torch.Tensor = DENSE) -> torch.Tensor:
    return of_layout(torch.sparse_csr, device, dense)


# --- every layout: make, convert, move, save


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_it_is_made_of_a_dense_tensor_and_back(layout: torch.layout) -> None:
    assert_both_same(lambda device: of_layout(layout, device))
    assert_both_same(lambda device: of_layout(layout, device).to_dense())
    made = of_layout(layout, "remote")
    assert made.layout == layout
    assert made.device == made.values().device == torch.device("remote:0")


MAKERS: dict[str, Callable[[str], torch.Tensor]] = {
    "csr_of_lists": lambda d: torch.sparse_csr_tensor([0, 1, 2], [0, 1], [1.0, 2], device=d),
    "csr_of_parts": lambda d: torch.sparse_csr_tensor(
        torch.tensor([0, 1, 2]).to(d), torch.tensor([0, 1]).to(d), torch.ones(2).to(d), (2, 3)
    ),
    "csr_of_int32": lambda d: torch.sparse_csr_tensor(
        torch.tensor([0, 1, 2], dtype=torch.int32).to(d),
        torch.tensor([0, 1], dtype=torch.int32).to(d),
        torch.ones(2).to(d),
    ),
    "csr_checked": lambda d: torch.sparse_csr_tensor(
        [0, 1, 2], [0, 1], [1.0, 2], (2, 3), device=d, check_invariants=True
    ),
    "csc": lambda d: torch.sparse_csc_tensor([0, 1, 2], [0, 1], [1.0, 2], device=d),
    "bsr": lambda d: torch.sparse_bsr_tensor([0, 1], [0], [[[1.0]]], device=d),
    "bsc": lambda d: torch.sparse_bsc_tensor([0, 1], [0], [[[1.0]]], device=d),
    "compressed": lambda d: torch.sparse_compressed_tensor(
        [0, 1, 2], [0, 1], [1.0, 2], layout=torch.sparse_csr, device=d
    ),
    "empty": lambda d: torch.zeros(2, 3, layout=torch.sparse_csr, device=d),
    "batched": lambda d: csr(d, torch.stack([DENSE, DENSE])),
    "zeros_like": lambda d: torch.zeros_like(csr(d)),
}


@pytest.mark.parametrize("way", MAKERS)
def test_it_is_made_of_its_parts(way: str) -> None:
    assert_both_same(MAKERS[way])


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("target", [*LAYOUTS, torch.sparse_coo], ids=str)
def test_it_is_converted_where_the_cpu_converts_it(
    layout: torch.layout, target: torch.layout
) -> None:
    blocked = target in (torch.sparse_bsr, torch.sparse_bsc)

    def convert(device: str) -> Any:
        blocks = {"blocksize": (2, 2)} if blocked else {}
        try:
            return of_layout(layout, device).to_sparse(layout=target, **blocks)
        except (RuntimeError, ValueError) as error:
            return type(error)

    assert_both_same(convert)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_it_is_moved_copied_and_cast(layout: torch.layout) -> None:
    local = of_layout(layout, "cpu")
    there = local.to("remote")
    assert there.device.type == "remote"
    for result in (there, there.cpu(), there.clone(), there.detach(), copy.deepcopy(there)):
        assert_same(apart(result), apart(local))
    assert_same(apart(there.to(torch.float64)), apart(local.to(torch.float64)))
    assert there.to("remote") is there


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_it_is_saved_and_loaded(layout: torch.layout) -> None:
    for target in ("remote:0", "cpu"):
        loaded = torch.load(saved([of_layout(layout, "remote")]), map_location=target)[0]
        assert loaded.device == torch.device(target)
        assert_same(apart(loaded), apart(of_layout(layout, "cpu")))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_it_is_printed_with_its_device(layout: torch.layout) -> None:
    text = repr(of_layout(layout, "remote")).replace("device='remote:0',", "")
    assert text.split() == repr(of_layout(layout, "cpu")).split()


# --- CSR: computing

USES: dict[str, Callable[[str], Any]] = {
    "mm": lambda d: csr(d) @ WEIGHT.to(d),
    "sparse_mm": lambda d: torch.sparse.mm(csr(d), WEIGHT.to(d)),
    "mm_csr": lambda d: csr(d) @ csr(d, WEIGHT),
    "mm_of_dense": lambda d: WEIGHT.T.contiguous().to(d) @ csr(d),
    "mm_reduce": lambda d: torch.sparse.mm(csr(d), WEIGHT.to(d), "mean"),
    "mv": lambda d: csr(d) @ WEIGHT[:, 0].contiguous().to(d),
    "addmm": lambda d: torch.addmm(torch.ones(4, 5).to(d), csr(d), WEIGHT.to(d)),
    "linear": lambda d: torch.nn.functional.linear(WEIGHT.T.contiguous().to(d), csr(d)),
    "add": lambda d: csr(d) + csr(d, DENSE.T.contiguous()),
    "add_to_dense": lambda d: DENSE.to(d) + csr(d),
    "mul_number": lambda d: csr(d) * 2,
    "mul": lambda d: csr(d) * csr(d),
    "neg": lambda d: -csr(d),
    "sin": lambda d: csr(d).sin(),
    "relu": lambda d: torch.relu(csr(d)),
    "isnan": lambda d: csr(d).isnan(),
    "sum": lambda d: csr(d).sum(),
    "sum_dim": lambda d: csr(d).sum(1, keepdim=True),
    "select": lambda d: csr(d)[1],
    "transpose": lambda d: csr(d).t(),
    "sampled_addmm": lambda d: torch.sparse.sampled_addmm(
        csr(d), torch.ones(4, 2).to(d), torch.ones(2, 4).to(d)
    ),
    "sparse_mask": lambda d: torch.ones(4, 4).to(d).sparse_mask(csr(d)),
    "triangular_solve": lambda d: torch.triangular_solve(
        torch.ones(3, 1).to(d), csr(d, torch.eye(3))
    ),
    "zero_": lambda d: csr(d).zero_(),
    "fill_": lambda d: csr(d).fill_(2),
    "mul_": lambda d: csr(d).mul_(2),
    # What C++ and formulas of autograd call; Python's operator calls mul.Tensor.
    "mul.Scalar": lambda d: torch.ops.aten.mul.Scalar(csr(d), 2.0),
    "mul_.Scalar": lambda d: torch.ops.aten.mul_.Scalar(csr(d), 2.0),
    "abs_": lambda d: csr(d).abs_(),
    "add_": lambda d: csr(d).add_(csr(d, DENSE.T.contiguous())),
    "copy_": lambda d: csr(d).copy_(csr(d) * 3),
    "mm_out": lambda d: torch.mm(csr(d), WEIGHT.to(d), out=torch.empty(4, 5, device=d)),
    "add_out": lambda d: torch.add(csr(d), csr(d), out=csr(d, torch.eye(4))),
    "bsr_mm": lambda d: of_layout(torch.sparse_bsr, d) @ WEIGHT.to(d),
    "csc_mm": lambda d: of_layout(torch.sparse_csc, d) @ WEIGHT.to(d),
}


@pytest.mark.parametrize("use", USES)
def test_csr_operators_give_the_bytes_of_the_cpu(use: str) -> None:
    assert_both_same(USES[use])


def test_a_product_of_two_csr_tensors_is_computed_with() -> None:
    """MKL leaves the columns of a row in any order."""
    torch.manual_seed(0)
    one, other = (torch.randn(40, 40) * (torch.rand(40, 40) > 0.7) for _ in range(2))
    assert_both_same(lambda d: (csr(d, one) @ csr(d, other)).to_dense())
    assert_both_same(lambda d: (csr(d, one) @ csr(d, other)) @ one.to(d))


GRADIENTS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "mm": lambda s, w: torch.sparse.mm(s, w),
    "mm_amax": lambda s, w: torch.sparse.mm(s, w, "amax"),
    "to_dense": lambda s, w: s.to_dense() @ w,
    "values": lambda s, w: s.values().sum() * w,
    "sampled": lambda s, w: torch.sparse.sampled_addmm(s, w, w.T).to_dense(),
    "mul": lambda s, w: (s * 2).to_dense() @ w,
}


@pytest.mark.parametrize("use", GRADIENTS)
def test_gradients_of_csr_operators(use: str) -> None:
    def run(device: str) -> list[torch.Tensor | None]:
        sparse = csr(device).requires_grad_()
        weight = WEIGHT.clone().to(device).requires_grad_()
        result = GRADIENTS[use](sparse, weight)
        result.sum().backward()
        return [result, sparse.grad, weight.grad]

    assert_both_same(run)


def test_an_index_outside_the_tensor_is_refused_by_the_server() -> None:
    bad = csr("remote")
    bad.col_indices()[0] = 1 << 40
    with pytest.raises(RuntimeError, match="col_indices"):
        bad.to_dense().cpu()
    assert csr("remote").sum().item() == csr("cpu").sum().item()
