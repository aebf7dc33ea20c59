"""Layouts that a remote device lacks, quantized and mkldnn, are refused at the call."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
import torch
from helpers import assert_same

COO = torch.tensor([[1.0, 0, 2], [0, 3, 0]])


def dense() -> torch.Tensor:
    return COO.to("remote")


def indices(*values: int) -> torch.Tensor:
    return torch.tensor(values, device="remote")


def quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(COO, 0.1, 0, torch.quint8)


def module_with(tensor: torch.Tensor) -> torch.nn.Module:
    module = torch.nn.Module()
    module.register_buffer("buffer", tensor)
    return module


def loaded(tensor: torch.Tensor) -> torch.Tensor:
    stream = io.BytesIO()
    torch.save(tensor, stream)
    stream.seek(0)
    return torch.load(stream, map_location="remote")


WAYS: dict[str, Callable[[], object]] = {
    "quantize_per_tensor": lambda: torch.quantize_per_tensor(dense(), 0.1, 0, torch.quint8),
    "quantize_per_channel": lambda: torch.quantize_per_channel(
        dense(), torch.ones(2, device="remote"), indices(0, 0), 0, torch.qint8
    ),
    "quantize_dynamic": lambda: torch.quantize_per_tensor_dynamic(dense(), torch.quint8, False),
    "quantized_to": lambda: quantized().to("remote"),
    "empty_quantized": lambda: torch.empty(2, dtype=torch.quint8, device="remote"),
    "to_quantized_dtype": lambda: dense().to(torch.qint8),
    "empty_affine": lambda: torch._empty_affine_quantized(
        [2], scale=1.0, zero_point=0, dtype=torch.quint8, device="remote"
    ),
    "quantized_like": lambda: torch.empty_like(quantized(), device="remote"),
    "quantized_of_parts": lambda: torch._make_per_tensor_quantized_tensor(
        torch.ones(2, dtype=torch.uint8, device="remote"), 0.1, 0
    ),
    "quantized_copied": lambda: dense().copy_(quantized()),
    "copied_to_quantized": lambda: quantized().copy_(dense()),
    "quantized_loaded": lambda: loaded(quantized()),
    "quantized_buffer": lambda: module_with(quantized()).to("remote"),
    "to_mkldnn": lambda: dense().to_mkldnn(),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", WAYS)
def test_another_layout_is_refused_at_the_call_with_the_way_out(way: str) -> None:
    with pytest.raises(NotImplementedError, match=r"dense, sparse and nested tensors.*\.cpu\(\)"):
        WAYS[way]()


def test_the_session_lives_after_a_refusal() -> None:
    with pytest.raises(NotImplementedError):
        dense().to_mkldnn()
    assert dense().sum().item() == 6.0


@pytest.mark.filterwarnings("ignore")
def test_an_mkldnn_tensor_cannot_be_moved_or_made() -> None:
    for way in (
        lambda: COO.to_mkldnn().to("remote"),
        lambda: module_with(COO.to_mkldnn()).to("remote"),
        lambda: torch.empty(2, layout=torch._mkldnn, device="remote"),  # type: ignore[attr-defined]
    ):
        with pytest.raises(NotImplementedError, match="mkldnn"):
            way()


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
