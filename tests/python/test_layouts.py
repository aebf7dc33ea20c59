"""Layouts that a remote device lacks are refused at the call; jagged nested tensors work."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from helpers import assert_same

COO = torch.tensor([[1.0, 0, 2], [0, 3, 0]])


def dense() -> torch.Tensor:
    return COO.to("remote")


def indices(*values: int) -> torch.Tensor:
    return torch.tensor(values, device="remote")


def embedded(function: Callable[..., torch.Tensor], *rest: torch.Tensor) -> None:
    weight = torch.randn(3, 2, device="remote", requires_grad=True)
    function(indices(0, 1), weight, *rest, sparse=True).sum().backward()


WAYS: dict[str, Callable[[], object]] = {
    "coo_to": lambda: COO.to_sparse().to("remote"),
    "coo_method": lambda: COO.to_sparse().remote(),
    "csr_to": lambda: COO.to_sparse_csr().to("remote"),
    "csc_to": lambda: COO.to_sparse_csc().to("remote"),
    "bsr_to": lambda: torch.ones(4, 4).to_sparse_bsr((2, 2)).to("remote"),
    "bsc_to": lambda: torch.ones(4, 4).to_sparse_bsc((2, 2)).to("remote"),
    "coo_of_lists": lambda: torch.sparse_coo_tensor([[0], [1]], [1.0], (2, 3), device="remote"),
    "coo_of_cpu_parts": lambda: torch.sparse_coo_tensor(
        torch.tensor([[0], [1]]), torch.ones(1), (2, 3), device="remote"
    ),
    "coo_of_remote_parts": lambda: torch.sparse_coo_tensor(
        indices(0, 1).unsqueeze(1), torch.ones(1, device="remote"), (2, 3)
    ),
    "coo_of_nothing": lambda: torch.sparse_coo_tensor((2, 3), device="remote"),
    "csr_of_lists": lambda: torch.sparse_csr_tensor([0, 1, 2], [0, 1], [1.0, 2], device="remote"),
    "csr_of_cpu_parts": lambda: torch.sparse_csr_tensor(
        torch.tensor([0, 1, 2]), torch.tensor([0, 1]), torch.ones(2), device="remote"
    ),
    "csr_of_remote_parts": lambda: torch.sparse_csr_tensor(
        indices(0, 1, 2), indices(0, 1), torch.ones(2, device="remote")
    ),
    "csc": lambda: torch.sparse_csc_tensor([0, 1, 2], [0, 1], [1.0, 2], device="remote"),
    "bsr": lambda: torch.sparse_bsr_tensor([0, 1], [0], [[[1.0]]], device="remote"),
    "bsc": lambda: torch.sparse_bsc_tensor([0, 1], [0], [[[1.0]]], device="remote"),
    "compressed": lambda: torch.sparse_compressed_tensor(
        [0, 1, 2], [0, 1], [1.0, 2], layout=torch.sparse_csr, device="remote"
    ),
    "to_sparse": lambda: dense().to_sparse(),
    "to_sparse_of_dims": lambda: dense().to_sparse(1),
    "to_sparse_of_layout": lambda: dense().to_sparse(layout=torch.sparse_csr),
    "to_sparse_csr": lambda: dense().to_sparse_csr(),
    "to_sparse_csc": lambda: dense().to_sparse_csc(),
    "to_sparse_bsr": lambda: dense().to_sparse_bsr((1, 1)),
    "to_sparse_bsc": lambda: dense().to_sparse_bsc((1, 1)),
    "sparse_mask": lambda: dense().sparse_mask(COO.to_sparse()),
    "empty_coo": lambda: torch.empty(2, layout=torch.sparse_coo, device="remote"),
    "empty_csr": lambda: torch.empty(2, 3, layout=torch.sparse_csr, device="remote"),
    "zeros_coo": lambda: torch.zeros(2, layout=torch.sparse_coo, device="remote"),
    "zeros_csr": lambda: torch.zeros(2, 3, layout=torch.sparse_csr, device="remote"),
    "zeros_like_coo": lambda: torch.zeros_like(COO.to_sparse(), device="remote"),
    "copy_from_coo": lambda: dense().copy_(COO.to_sparse()),
    "copy_into_coo": lambda: COO.to_sparse().copy_(dense()),
    "add_coo": lambda: dense() + COO.to_sparse(),
    "mm_coo": lambda: COO.to_sparse() @ dense().mT,
    "mm_csr": lambda: COO.to_sparse_csr() @ dense().mT,
    "sparse_mm": lambda: torch.sparse.mm(COO.to_sparse(), dense().mT),
    "sparse_mm_of_dense": lambda: torch.sparse.mm(dense(), COO.mT.to_sparse()),
    "sampled_addmm": lambda: torch.sparse.sampled_addmm(COO.to_sparse_csr(), dense(), dense().mT),
    "spdiags": lambda: torch.sparse.spdiags(dense(), indices(0, 1), (3, 3)),
    "embedding_gradient": lambda: embedded(torch.nn.functional.embedding),
    "embedding_bag_gradient": lambda: embedded(torch.nn.functional.embedding_bag, indices(0)),
    "embedding_module": lambda: (
        torch.nn.Embedding(3, 2, sparse=True, device="remote")(indices(0, 1)).sum().backward()
    ),
    "gather_gradient": lambda: (
        dense()
        .requires_grad_()
        .gather(1, indices(0, 1)[:, None], sparse_grad=True)
        .sum()
        .backward()
    ),
    "quantize_per_tensor": lambda: torch.quantize_per_tensor(dense(), 0.1, 0, torch.quint8),
    "quantize_per_channel": lambda: torch.quantize_per_channel(
        dense(), torch.ones(2, device="remote"), indices(0, 0), 0, torch.qint8
    ),
    "quantize_dynamic": lambda: torch.quantize_per_tensor_dynamic(dense(), torch.quint8, False),
    "quantized_to": lambda: torch.quantize_per_tensor(COO, 0.1, 0, torch.quint8).to("remote"),
    "empty_quantized": lambda: torch.empty(2, dtype=torch.quint8, device="remote"),
    "to_quantized_dtype": lambda: dense().to(torch.qint8),
    "nested_of_cpu_parts": lambda: torch.nested.nested_tensor([COO[0], COO[1]], device="remote"),
    "nested_of_remote_parts": lambda: torch.nested.nested_tensor([dense()[0], dense()[1]]),
    "as_nested": lambda: torch.nested.as_nested_tensor([dense()[0], dense()[1]]),
    "nested_to": lambda: torch.nested.nested_tensor([COO[0], COO[1]]).to("remote"),
    "to_mkldnn": lambda: dense().to_mkldnn(),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", WAYS)
def test_another_layout_is_refused_at_the_call_with_the_way_out(way: str) -> None:
    with pytest.raises(NotImplementedError, match=r"dense tensors only.*\.cpu\(\)"):
        WAYS[way]()


@pytest.mark.filterwarnings("ignore")
def test_an_encoder_that_would_nest_padded_input_names_the_switch() -> None:
    layer = torch.nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    x, padding = torch.randn(2, 3, 4), torch.tensor([[False, False, True], [False, False, False]])

    def encode(nests: bool, device: str) -> torch.Tensor:
        encoder = (
            torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=nests).to(device).eval()
        )
        with torch.no_grad():
            return encoder(x.to(device), src_key_padding_mask=padding.to(device)).cpu()

    with pytest.raises(NotImplementedError, match="enable_nested_tensor=False"):
        encode(nests=True, device="remote")
    assert_same(encode(nests=False, device="remote"), encode(nests=False, device="cpu"))


def test_the_session_lives_after_a_refusal() -> None:
    with pytest.raises(NotImplementedError):
        dense().to_sparse()
    assert dense().sum().item() == 6.0


@pytest.mark.filterwarnings("ignore")
def test_an_mkldnn_tensor_cannot_be_moved() -> None:
    with pytest.raises(NotImplementedError, match="mkldnn"):
        COO.to_mkldnn().to("remote")


@pytest.mark.filterwarnings("ignore")
def test_other_layouts_still_work_on_the_cpu() -> None:
    assert torch.nested.nested_tensor([COO[0], COO[1, :2]]).size(0) == 2
    assert COO.to_sparse_csr().to_dense().equal(COO)


@pytest.mark.filterwarnings("ignore")
def test_jagged_nested_tensors_work() -> None:
    def use(device: str) -> list[torch.Tensor]:
        parts = [torch.arange(8.0).reshape(2, 4), torch.ones(3, 4)]
        made = torch.nested.nested_tensor(parts, layout=torch.jagged, device=device)
        weight = torch.ones(4, 4, device=device, requires_grad=True)
        result = (made * 2).sin() @ weight
        result.values().sum().backward()
        assert weight.grad is not None
        return [made.to_padded_tensor(0.0), *result.unbind(), result.cpu().values(), weight.grad]

    assert_same(use("remote"), use("cpu"))
